#include "engine/sim/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "engine/base/error.h"

namespace hvd::sim::world_test {
namespace {

TEST(CostTable, IsExactForALatencyPlusATimePerByteBetweenAndBeyondItsPoints) {
  // 10 us and 1 GB/s
  const CostTable table({{1000, 11e-6}, {4000, 14e-6}, {1000000, 1010e-6}});
  EXPECT_DOUBLE_EQ(table.seconds(1000), 11e-6);
  EXPECT_DOUBLE_EQ(table.seconds(2000), 12e-6);
  EXPECT_DOUBLE_EQ(table.seconds(500000), 510e-6);
  EXPECT_DOUBLE_EQ(table.seconds(3000000), 3010e-6);
  EXPECT_DOUBLE_EQ(table.seconds(0), 11e-6) << "below the first point: its time";
}

TEST(CostTable, OnePointIsAConstant) {
  const CostTable table({{64, 2.0}});
  EXPECT_EQ(table.seconds(1), 2);
  EXPECT_EQ(table.seconds(1U << 20), 2);
}

TEST(CostTable, IsAsMonotoneAsItsPointsAndStaysBetweenThem) {
  const CostTable rising({{8, 1}, {64, 1}, {512, 3}, {4096, 3.5}, {1U << 20, 700}});
  double before = 0;
  for (std::size_t bytes = 0; bytes < 3000000; bytes += 1 + bytes / 7) {
    EXPECT_GE(rising.seconds(bytes), before) << bytes;
    before = rising.seconds(bytes);
  }
  // Another algorithm from 1025 bytes on is faster.
  const CostTable dip({{1, 1}, {1024, 5}, {1025, 2}, {2048, 3}});
  EXPECT_EQ(dip.seconds(1024), 5);
  EXPECT_EQ(dip.seconds(1025), 2);
  for (std::size_t bytes = 1025; bytes <= 2048; ++bytes) {
    EXPECT_GE(dip.seconds(bytes), 2);
    EXPECT_LE(dip.seconds(bytes), 3);
  }
  EXPECT_EQ(CostTable({{1, 5}, {2, 1}}).seconds(100), 0) << "a falling slope ends at 0";
}

TEST(CostTable, DrawsFactorsOfTheNearestSizeByRatio) {
  const CostTable table({{100, 1, {2, 3}}, {400, 1, {4}}, {1600, 1}});
  EXPECT_EQ(table.factor(1, 0), 2);
  EXPECT_EQ(table.factor(199, 0.49), 2);
  EXPECT_EQ(table.factor(199, 0.5), 3);
  EXPECT_EQ(table.factor(199, 0.99999), 3);
  EXPECT_EQ(table.factor(201, 0.5), 4);
  EXPECT_EQ(table.factor(100000, 0.5), 1) << "without samples there is no jitter";
}

TEST(CostTable, RefusesPointsThatAreNoTable) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Points = std::vector<CostPoint>;
  for (const Points& points : {Points{}, Points{{0, 1}}, Points{{8, 1}, {8, 2}}, Points{{8, 1}, {4, 2}},
                               Points{{8, -1}}, Points{{8, nan}}, Points{{8, 1, {-1}}}, Points{{8, 1, {nan}}}}) {
    EXPECT_THROW(CostTable{points}, Error);
  }
}

/// Nodes of two ranks. The factor of rank r in step s of node n is 1000 (n + 1) + 10 s + r, so that it tells its
/// origin.
NoisePool telling_pool(std::size_t nodes, std::size_t steps, std::size_t block_steps) {
  NoisePool pool;
  pool.block_steps = block_steps;
  for (std::size_t n = 0; n < nodes; ++n) {
    pool.nodes.emplace_back();
    for (std::size_t r = 0; r < 2; ++r) {
      pool.nodes.back().emplace_back();
      for (std::size_t s = 0; s < steps; ++s) {
        pool.nodes.back().back().push_back(static_cast<double>(1000 * (n + 1) + 10 * s + r));
      }
    }
  }
  return pool;
}

std::vector<double> drawn(const ComputeNoise& noise, std::uint64_t step, std::size_t ranks) {
  std::vector<double> factors(ranks);
  noise.draw(step, factors);
  return factors;
}

std::size_t node_of(double factor) { return static_cast<std::size_t>(factor) / 1000; }
std::size_t step_of(double factor) { return static_cast<std::size_t>(factor) % 1000 / 10; }

TEST(ComputeNoise, WithoutRecordedNodesEveryFactorIsOne) {
  EXPECT_EQ(drawn(ComputeNoise({}, {3, 2}, 1), 5, 3), (std::vector<double>{1, 1, 1}));
}

TEST(ComputeNoise, ANodePlaysOneRecordedNodeInBlocksWithAllItsRanksTogether) {
  constexpr std::size_t kRanks = 33, kSteps = 20, kBlock = 4;
  const ComputeNoise noise(telling_pool(3, kSteps, kBlock), {kRanks, 2}, 7);
  std::set<std::size_t> played, starts;
  std::vector<double> before;
  for (std::uint64_t step = 0; step < 40; ++step) {
    const std::vector<double> now = drawn(noise, step, kRanks);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const double first = now[rank - rank % 2];
      EXPECT_EQ(now[rank], first + static_cast<double>(rank % 2)) << "the ranks of a node are in the same step";
      played.insert(node_of(now[rank]));
      if (step == 0) continue;
      EXPECT_EQ(node_of(now[rank]), node_of(before[rank])) << "a node stays itself";
      if (step % kBlock != 0) {
        EXPECT_EQ(step_of(now[rank]), (step_of(before[rank]) + 1) % kSteps);
      } else {
        starts.insert(step_of(now[rank]));
      }
    }
    before = now;
  }
  EXPECT_EQ(played, (std::set<std::size_t>{1, 2, 3}));
  EXPECT_EQ(starts.size(), kSteps) << "blocks begin anywhere";
}

TEST(ComputeNoise, NodesPlayOtherStepsUnlessTheyAreToPlayTheSame) {
  NoisePool pool = telling_pool(1, 50, 5);
  const auto apart = drawn(ComputeNoise(pool, {8, 2}, 3), 0, 8);
  EXPECT_GT((std::set<double>{apart.begin(), apart.end()}).size(), 2U);
  pool.common_steps = true;
  const auto together = drawn(ComputeNoise(pool, {8, 2}, 3), 0, 8);
  EXPECT_EQ((std::set<double>{together.begin(), together.end()}).size(), 2U);
}

TEST(ComputeNoise, TheSeedDecides) {
  const NoisePool pool = telling_pool(3, 20, 4);
  EXPECT_EQ(drawn(ComputeNoise(pool, {64, 2}, 1), 9, 64), drawn(ComputeNoise(pool, {64, 2}, 1), 9, 64));
  EXPECT_NE(drawn(ComputeNoise(pool, {64, 2}, 1), 9, 64), drawn(ComputeNoise(pool, {64, 2}, 2), 9, 64));
}

TEST(ComputeNoise, RefusesNodesThatDoNotFit) {
  const auto refused = [](NodeFactors node, Ranks ranks) {
    EXPECT_THROW(ComputeNoise(NoisePool{.nodes = {std::move(node)}}, ranks, 1), Error);
  };
  refused({{1, 1}}, {4, 2});
  refused({}, {1, 1});
  refused({{}}, {1, 1});
  refused({{1, 1}, {1}}, {4, 2});
  refused({{1, 0}}, {1, 1});
  refused({{1, std::numeric_limits<double>::infinity()}}, {1, 1});
  EXPECT_NO_THROW(ComputeNoise(NoisePool{.nodes = {{{1, 1}}}}, {1, 8}, 1)) << "one rank on a node for eight";
}

}  // namespace

}  // namespace hvd::sim::world_test
