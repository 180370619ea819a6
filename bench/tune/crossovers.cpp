#include "bench/tune/crossovers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <sstream>
#include <string_view>

#include "bench/store/build_info.h"
#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kThresholds = "thresholds";

std::string size_text(std::size_t bytes) {
  constexpr std::size_t kMebi = std::size_t{1} << 20;
  if (bytes >= kMebi && bytes % kMebi == 0) return std::to_string(bytes / kMebi) + " MiB";
  if (bytes >= 1024 && bytes % 1024 == 0) return std::to_string(bytes / 1024) + " KiB";
  return std::to_string(bytes) + " B";
}

/// Returns the default threshold, but at most `smallest` - 1 bytes: defaults apply only to sizes below `smallest`, the
/// smallest measured size.
std::size_t below(std::size_t smallest, std::size_t default_bytes) {
  return std::min(default_bytes, smallest > 0 ? smallest - 1 : 0);
}

/// `up_to` 0 means that the algorithm is never used.
std::string range_text(std::string_view algorithm, std::size_t up_to) {
  return up_to == 0 ? std::string() : fmt::format("{} up to {}, ", algorithm, size_text(up_to));
}

}  // namespace

CrossoverCase crossover_case(const comm::Topology& world, const std::string& library) {
  const Processor here = processor();
  return {{"ranks", std::to_string(world.size)},
          {"hosts", std::to_string(world.nodes)},
          {"ranks on the first host", std::to_string(world.local_size)},
          {"processor", here.model},
          {"processor cores", std::to_string(here.cores)},
          {"library", library},
          {"hvd_bench", std::string(build_info().version)}};
}

comm::Thresholds best_thresholds(std::vector<AllReduceTimes> reductions, std::vector<ShareTimes> shares) {
  const auto by_size = [](const auto& a, const auto& b) { return a.bytes < b.bytes; };
  std::sort(reductions.begin(), reductions.end(), by_size);
  std::sort(shares.begin(), shares.end(), by_size);
  const comm::Thresholds defaults;
  comm::Thresholds best;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t first = 0; !reductions.empty() && first <= reductions.size(); ++first) {
    for (std::size_t second = first; second <= reductions.size(); ++second) {
      double sum = 0;
      for (std::size_t i = 0; i < reductions.size(); ++i) {
        const AllReduceTimes& at = reductions[i];
        sum += std::log(i < first ? at.doubling : i < second ? at.rabenseifner : at.ring);
      }
      if (sum >= least) continue;
      least = sum;
      best.doubling_bytes =
          first == 0 ? below(reductions.front().bytes, defaults.doubling_bytes) : reductions[first - 1].bytes;
      best.rabenseifner_bytes = second == first ? 0 : reductions[second - 1].bytes;
    }
  }
  least = std::numeric_limits<double>::infinity();
  // reduce_scatter and all_gather share this threshold, so a size may occur twice. A cut lies between different sizes.
  for (std::size_t cut = 0; !shares.empty() && cut <= shares.size(); ++cut) {
    if (cut > 0 && cut < shares.size() && shares[cut].bytes == shares[cut - 1].bytes) continue;
    double sum = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) sum += std::log(i < cut ? shares[i].direct : shares[i].ring);
    if (sum >= least) continue;
    least = sum;
    best.direct_bytes = cut == 0 ? below(shares.front().bytes, defaults.direct_bytes) : shares[cut - 1].bytes;
  }
  return best;
}

std::string crossover_text(const comm::Thresholds& thresholds) {
  const std::string reductions =
      range_text("doubling", thresholds.doubling_bytes) + range_text("rabenseifner", thresholds.rabenseifner_bytes);
  const std::string shares = range_text("direct", thresholds.direct_bytes);
  return fmt::format("all_reduce: {}{}; reduce_scatter and all_gather: {}{}", reductions,
                     reductions.empty() ? "ring" : "above that ring", shares,
                     shares.empty() ? "ring" : "above that ring");
}

std::string crossover_path(const std::string& folder, const CrossoverCase& conditions) {
  return (fs::path(folder) / ("between-hosts-" + hex64(Hasher().text(key_lines(conditions)).value()) + ".crossovers"))
      .string();
}

std::string crossover_file(const CrossoverCase& conditions, const comm::Thresholds& thresholds) {
  CrossoverCase lines = conditions;
  lines.emplace_back(kThresholds, fmt::format("{} {} {}", thresholds.doubling_bytes, thresholds.rabenseifner_bytes,
                                              thresholds.direct_bytes));
  return key_lines(lines);
}

std::optional<comm::Thresholds> parse_crossovers(const std::string& text, const CrossoverCase& conditions) {
  const std::string key = key_lines(conditions);
  if (!text.starts_with(key)) return std::nullopt;
  std::string_view rest = std::string_view(text).substr(key.size());
  const auto [name, values] = split_line(take_line(rest));
  if (name != kThresholds) return std::nullopt;
  std::istringstream in{std::string(values)};
  comm::Thresholds thresholds;
  in >> thresholds.doubling_bytes >> thresholds.rabenseifner_bytes >> thresholds.direct_bytes;
  // Writing the values again must give the same text. A file with extra or other text is refused.
  return in && crossover_file(conditions, thresholds) == text ? std::optional(thresholds) : std::nullopt;
}

std::string keep_crossovers(const std::string& folder, const CrossoverCase& conditions,
                            const comm::Thresholds& thresholds) {
  std::error_code trouble;  // ignored: without a folder, writing the file fails below
  fs::create_directories(folder, trouble);
  std::string path = crossover_path(folder, conditions);
  replace_file(path, crossover_file(conditions, thresholds));
  return path;
}

std::optional<comm::Thresholds> kept_crossovers(comm::Communicator& communicator, const std::string& folder,
                                                Deadline deadline) {
  const comm::Topology& world = communicator.topology();
  if (world.nodes == 1 || folder.empty()) return std::nullopt;
  std::string told;
  if (world.rank == 0) {
    const CrossoverCase conditions = crossover_case(world, communicator.library());
    const std::string text = read_file(crossover_path(folder, conditions)).value_or("");
    // Send the file without its case, because other ranks may have another processor or library and so another case.
    if (const auto found = parse_crossovers(text, conditions)) told = crossover_file({}, *found);
  }
  return parse_crossovers(comm::text_of(communicator.control().broadcast(std::as_bytes(std::span(told)), 0, deadline)),
                          {});
}

}  // namespace hvd::bench
