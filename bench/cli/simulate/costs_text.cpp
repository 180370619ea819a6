#include "bench/cli/simulate/costs_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "bench/cli/line_reader.h"
#include "models/replay/replay.h"

namespace hvd::bench {
namespace {

constexpr std::string_view kVersionLine = "hvd-costs 2";
// No real world exceeds these limits. They keep the memory of a text below 200 MB.
constexpr double kMaxSeconds = 86400;
constexpr double kMaxSampleFactor = 1e6;  // of one sample of a collective: a lost packet costs 0.2 s instead of 20 us
constexpr std::size_t kMaxSteps = 10'000, kMaxRanks = 1 << 16, kMaxDraws = 1 << 16;
constexpr std::size_t kMaxLines = 1 << 19, kMaxNumbers = 1 << 22;
constexpr std::size_t kMaxBytes = std::size_t{1} << 50;  // of one collective
constexpr std::size_t kMaxAlign = 4096;
constexpr std::array kReducers{sim::Reducer::kEngineThread, sim::Reducer::kStream};

class CostsParser : LineReader {
 public:
  CostsParser(std::string_view text, const std::string& origin) : LineReader(text, origin, {kMaxLines, kMaxNumbers}) {}

  CostsText run() {
    if (line() != kVersionLine) {
      fail(fmt::format("is not a text of costs that this program can read; the first line must be '{}'", kVersionLine));
    }
    next_line();
    line("seed", [this] { costs_.seed = whole(0, std::numeric_limits<std::uint64_t>::max()); });
    line("steps", [this] { costs_.steps = whole(1, kMaxSteps); });
    line("block", [this] { costs_.noise.block_steps = whole(1, kMaxSteps); });
    line("device", [this] { costs_.reducer = choice({"host", "stream"}, kReducers); });
    if (at("align")) line("align", [this] { costs_.align = whole(1, kMaxAlign); });
    while (take("node")) node();
    while (take("world")) world();
    expect("end");
    if (whole(0, kMaxLines) != costs_.worlds.size()) fail(fmt::format("the text has {} worlds", costs_.worlds.size()));
    if (more_words() || !at_end_of_text()) fail("there is text after the number of worlds");
    return std::move(costs_);
  }

 private:
  void node() {
    end_line();
    sim::NodeFactors node;
    do {
      expect("rank");
      std::vector<double> factors;
      do factors.push_back(real(models::kMinFactor, models::kMaxFactor));
      while (more_words());
      if (!node.empty() && factors.size() != node.front().size()) {
        fail(fmt::format("{} factors, and the node's first rank has {}", factors.size(), node.front().size()));
      }
      node.push_back(std::move(factors));
      end_line();
    } while (at("rank"));
    ranks_of_nodes_ = std::min(ranks_of_nodes_, node.size());
    costs_.noise.nodes.push_back(std::move(node));
  }

  void world() {
    CostsWorld world{.line = line_number()};
    world.ranks.count = static_cast<int>(whole(1, kMaxRanks));
    world.ranks.per_node = static_cast<int>(whole(1, kMaxRanks));
    const auto largest = static_cast<std::size_t>(std::min(world.ranks.count, world.ranks.per_node));
    if (largest > ranks_of_nodes_) {
      fail(fmt::format("a node of this world has {} ranks, and a recorded node has {}", largest, ranks_of_nodes_));
    }
    end_line();
    do {
      expect("draw");
      world.draws.push_back(draw());
    } while (at("draw"));
    costs_.worlds.push_back(std::move(world));
  }

  CostsDraw draw() {
    if (++draws_ > kMaxDraws) fail(fmt::format("more than {} draws", kMaxDraws));
    CostsDraw draw{.line = line_number()};
    end_line();
    draw.costs.all_reduce = table("all_reduce");
    draw.costs.reduce_scatter = table("reduce_scatter");
    draw.costs.all_gather = table("all_gather");
    draw.costs.small_all_reduce = table("small_all_reduce");
    draw.costs.small_reduce_scatter = table("small_reduce_scatter");
    draw.costs.small_all_gather = table("small_all_gather");
    const auto read = [this](std::string_view key_here, double& target, double low, double high) {
      if (at(key_here)) line(key_here, [&] { target = real(low, high); });
    };
    read("cycle", draw.costs.cycle_seconds, 0, kMaxSeconds);
    read("copy", draw.costs.copy_seconds_per_byte, 0, 1);
    read("slowdown", draw.costs.overlap_slowdown, 0, 1);
    read("compute", draw.compute_factor, models::kMinFactor, models::kMaxFactor);
    if (at("common")) line("common", [&] { draw.common_steps = whole(0, 1) == 1; });
    read("shift", draw.shift_seconds, 0, kMaxSeconds);
    return draw;
  }

  sim::CostTable table(std::string_view key) {
    std::vector<sim::CostPoint> points;
    while (take(key)) {
      const std::size_t least = points.empty() ? 1 : points.back().bytes + 1;
      sim::CostPoint point{.bytes = whole(least, kMaxBytes), .seconds = real(0, kMaxSeconds)};
      while (more_words()) point.factors.push_back(real(0, kMaxSampleFactor));
      points.push_back(std::move(point));
      end_line();
    }
    return points.empty() ? sim::CostTable() : sim::CostTable(std::move(points));
  }

  std::size_t draws_ = 0;
  std::size_t ranks_of_nodes_ = std::numeric_limits<std::size_t>::max();  // the fewest of a recorded node
  CostsText costs_;
};

}  // namespace

CostsText parse_costs(std::string_view text, const std::string& origin) { return CostsParser(text, origin).run(); }

}  // namespace hvd::bench
