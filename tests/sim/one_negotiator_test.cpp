// The simulator negotiates for a whole world with one core::Negotiator. This test compares its batches with those on
// which 2 to 512 negotiators agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "engine/sim/negotiated_batches.h"
#include "tests/core/lockstep_world.h"

namespace hvd::sim::one_negotiator_test {
namespace {

/// A step of gradients of random sizes, and random options of fusion.
struct Case {
  explicit Case(std::uint64_t seed) : random(seed) {
    std::size_t offset = 0;
    for (std::size_t g = 1 + below(60); g > 0; --g) {
      const std::size_t count = 1 + below(std::size_t{1} << (1 + below(17)));
      profile.gradients.push_back({.offset = offset, .count = count});
      offset += count + below(16);
    }
    const std::size_t thresholds[] = {0, 1000, 100000, std::size_t{1} << 20, std::size_t{128} << 20};
    options.fusion.threshold_bytes = thresholds[below(5)];
    options.fusion.align_bytes = below(2) == 0 ? 64 : 1;
  }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random() % limit); }

  std::mt19937_64 random;
  StepProfile profile;
  core::NegotiatorOptions options;
};

class OneNegotiator : public ::testing::TestWithParam<int> {};

TEST_P(OneNegotiator, MakesTheBatchesOfManyInLockstep) {
  const auto ranks = static_cast<std::size_t>(GetParam());
  const std::uint64_t seeds = ranks <= 7 ? 200 : ranks <= 64 ? 40 : 10;
  std::size_t partial = 0, fused = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks");
    Case one(seed * 1000 + ranks);
    const std::size_t gradients = one.profile.gradients.size();
    NegotiatedBatches simulated(one.profile, one.options);
    core::test::LockstepWorld world(GetParam(), one.options);
    for (int step = 0; step < 4; ++step) {
      std::vector<std::size_t> submitted(ranks, 0);
      // Every rank submits in the order of the gradients, but each at its own pace, also while a cycle runs.
      const auto submit = [&](std::size_t rank, std::size_t count) {
        for (std::size_t& next = submitted[rank]; count > 0 && next < gradients; --count, ++next) {
          const auto elements = static_cast<std::int64_t>(one.profile.gradients[next].count);
          world[rank].submit({"gradient " + std::to_string(next), DataType::kF32, ReduceOp::kAverage, {elements}},
                             static_cast<core::Tag>(next));
        }
      };
      for (std::size_t agreed = 0; agreed < gradients;) {
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          if (submitted[rank] == agreed || one.below(2) == 0) submit(rank, 1 + one.below(gradients / 2 + 1));
        }
        std::size_t common = *std::min_element(submitted.begin(), submitted.end());
        const auto done = world.cycle([&] { submit(one.below(ranks), one.below(3)); });
        if (step == 0) {  // a cycle with the coordinator also takes requests that were submitted during the cycle
          common = agreed;
          for (const core::Batch& batch : done.front().batches) common += batch.tags.size();
        }
        const std::span<const Batch> batches = simulated.agree(agreed, common);
        ASSERT_EQ(batches.size(), done.front().batches.size());
        for (std::size_t b = 0; b < batches.size(); ++b) {
          const core::Batch& real = done.front().batches[b];
          ASSERT_TRUE(real.error.empty()) << real.error;
          ASSERT_EQ(batches[b].gradients, real.tags);
          ASSERT_EQ(batches[b].bytes, real.bytes);
          ASSERT_EQ(batches[b].last, *std::max_element(real.tags.begin(), real.tags.end()));
          fused += real.tags.size() > 1 ? 1 : 0;
        }
        for (const core::CycleDone& rank : done) ASSERT_EQ(rank.batches, done.front().batches);
        partial += common < gradients ? 1 : 0;
        agreed = common;
      }
    }
  }
  // The seeds must have produced every case that this test is meant to cover.
  EXPECT_GT(partial, 0U);
  EXPECT_GT(fused, 0U);
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneNegotiator, ::testing::Values(2, 3, 7, 64, 512));

}  // namespace
}  // namespace hvd::sim::one_negotiator_test
