#include "bench/cli/simulate/costs_text.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::costs_text_test {
namespace {

const char* const kText =
    "hvd-costs 2\n"
    "seed 18446744073709551615\n"
    "steps 20\n"
    "block 10\n"
    "device stream\n"
    "align 32\n"
    "node\n"
    "rank 1.0 1.02\n"
    "rank 0.99 1\n"
    "world 64 2\n"
    "draw\n"
    "all_reduce 4096 1.2e-5 0.5 1.5\n"
    "all_reduce 8192 1e-3\n"
    "reduce_scatter 1 0.25\n"
    "all_gather 1 0.5\n"
    "small_all_reduce 1024 3e-6\n"
    "small_all_gather 1 0.125 2\n"
    "cycle 1.1e-5\n"
    "copy 1e-10\n"
    "slowdown 0.05\n"
    "compute 1.01\n"
    "common 1\n"
    "shift 5.5e-5\n"
    "draw\n"
    "world 1 8\n"
    "draw\n"
    "shift 0\n"
    "end 2\n";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Returns the text with line `index` replaced.
std::string with_line(std::size_t index, const std::string& line) {
  std::string text;
  const std::vector<std::string> lines = lines_of(kText);
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == index ? line : lines[i]) + "\n";
  return text;
}

std::string refusal(const std::string& text) {
  return test::error_of(Errc::kInvalidArgument, [&] { parse_costs(text, "f.costs"); });
}

std::string repeated(const std::string& piece, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += piece;
  return text;
}

TEST(CostsText, SaysEverything) {
  const CostsText costs = parse_costs(kText, "f");
  EXPECT_EQ(costs.seed, 18446744073709551615U);
  EXPECT_EQ(costs.steps, 20U);
  EXPECT_EQ(costs.align, 32U);
  EXPECT_EQ(costs.reducer, sim::Reducer::kStream);
  EXPECT_EQ(costs.noise.block_steps, 10U);
  EXPECT_EQ(costs.noise.nodes, (std::vector<sim::NodeFactors>{{{1.0, 1.02}, {0.99, 1}}}));
  ASSERT_EQ(costs.worlds.size(), 2U);
  EXPECT_EQ(costs.worlds[0].ranks.count, 64);
  EXPECT_EQ(costs.worlds[0].ranks.per_node, 2);
  EXPECT_EQ(costs.worlds[0].line, 10U);
  ASSERT_EQ(costs.worlds[0].draws.size(), 2U);
  const CostsDraw& draw = costs.worlds[0].draws[0];
  EXPECT_EQ(draw.line, 11U);
  EXPECT_DOUBLE_EQ(draw.costs.all_reduce.seconds(4096), 1.2e-5);
  EXPECT_DOUBLE_EQ(draw.costs.all_reduce.seconds(8192), 1e-3);
  EXPECT_EQ(draw.costs.all_reduce.factor(4096, 0.75), 1.5);
  EXPECT_EQ(draw.costs.reduce_scatter.seconds(1), 0.25);
  EXPECT_EQ(draw.costs.all_gather.seconds(1), 0.5);
  EXPECT_EQ(draw.costs.small_all_reduce.seconds(1024), 3e-6);
  EXPECT_TRUE(draw.costs.small_reduce_scatter.empty());
  EXPECT_EQ(draw.costs.small_all_gather.factor(1, 0), 2);
  EXPECT_EQ(draw.costs.cycle_seconds, 1.1e-5);
  EXPECT_EQ(draw.costs.copy_seconds_per_byte, 1e-10);
  EXPECT_EQ(draw.costs.overlap_slowdown, 0.05);
  EXPECT_EQ(draw.compute_factor, 1.01);
  EXPECT_TRUE(draw.common_steps);
  EXPECT_EQ(draw.shift_seconds, 5.5e-5);
  const CostsDraw& empty = costs.worlds[0].draws[1];
  EXPECT_TRUE(empty.costs.all_reduce.empty());
  EXPECT_EQ(empty.compute_factor, 1);
  EXPECT_EQ(empty.shift_seconds, 0);
}

TEST(CostsText, ADamagedLineIsNamed) {
  const std::vector<std::string> lines = lines_of(kText);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const std::string first_words = line.substr(0, line.rfind(' '));
    for (const std::string& damaged :
         {"x" + line, line + " x", line + " ", " " + line, line + "\r", std::string(), first_words + " nan",
          first_words + " -1", first_words + " 1e308", first_words + " inf", first_words + "  1",
          first_words + " 99999999999999999999999999", first_words + " \x1b[31m", first_words + " 1e-999"}) {
      const std::string told = refusal(with_line(i, damaged));
      EXPECT_TRUE(told.starts_with("f.costs:" + std::to_string(i + 1) + ": ")) << damaged << ": " << told;
    }
  }
}

TEST(CostsText, ATruncatedTextIsNeverAccepted) {
  const std::string text = kText;
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_THROW(parse_costs(text.substr(0, size), "f"), Error) << "accepted " << size << " bytes";
  }
}

TEST(CostsText, ErrorsSayWhatIsPossible) {
  struct Case {
    std::size_t line;
    std::string text, what;
  };
  const Case cases[] = {
      {1, "hvd-costs 1", "the first line must be 'hvd-costs 2'"},
      {3, "steps 0", "'0' is not a whole number from 1 to 10000"},
      {5, "device gpu", "'gpu' is none of host, stream"},
      {9, "rank 1 1 1", "3 factors, and the node's first rank has 2"},
      {10, "world 64 3", "a node of this world has 3 ranks, and a recorded node has 2"},
      {13, "all_reduce 4096 1e-3", "'4096' is not a whole number from 4097"},
      {18, "cycel 1.1e-5", "'cycel' cannot stand here; possible: small_all_gather, cycle, copy, slowdown"},
      {20, "slowdown 1.5", "'1.5' is not a number from 0 to 1"},
      {28, "end 3", "the text has 2 worlds"},
  };
  for (const Case& c : cases) {
    const std::string told = refusal(with_line(c.line - 1, c.text));
    EXPECT_NE(told.find(c.what), std::string::npos) << told;
  }
  EXPECT_NE(refusal(std::string(kText) + "more\n").find("text after"), std::string::npos);
  EXPECT_LT(refusal(with_line(1, "seed " + std::string(1'000'000, '9'))).size(), 200U);
}

TEST(CostsText, RefusesMoreThanItsLimits) {
  const std::string head = "hvd-costs 2\nseed 1\nsteps 1\nblock 1\ndevice host\n";
  const std::string rank = "rank" + repeated(" 1", 4096) + "\n";
  EXPECT_NE(refusal(head + "node\n" + repeated(rank, 1025)).find("more than 4194304 numbers"), std::string::npos);
  EXPECT_NE(refusal(head + "world 1 1\n" + repeated("draw\n", 65537)).find("more than 65536 draws"), std::string::npos);
  EXPECT_NE(refusal(head + repeated("node\nrank 1\n", 262150)).find("more than 524288 lines"), std::string::npos);
}

}  // namespace
}  // namespace hvd::bench::costs_text_test
