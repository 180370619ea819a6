// Tests slow_ranks on times without noise, whose intervals have the width zero. Expected values are computed by hand.
// slow_ranks_coverage_test.cpp counts wrong verdicts under noise. tests/scripts compares the figures with those of
// `hvdb ranks`.
#include "bench/measure/rank_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/measure/median.h"
#include "bench/train/checksum.h"
#include "engine/base/philox.h"

namespace hvd::bench::rank_comparison_test {
namespace {

using Times = std::vector<std::vector<double>>;  // [member][step]

Times constant(const std::vector<double>& seconds, std::size_t steps = 10) {
  Times times;
  for (const double member : seconds) times.emplace_back(steps, member);
  return times;
}

constexpr double kCritical = 10;

TEST(SlowRanks, EachIsComparedWithTheMedianOfTheOthers) {
  const std::vector<Slowness> judged = compare_times(constant({1, 2, 4, 1, 1.05}), 0.02, kCritical);
  const std::vector<double> others{std::sqrt(1.05 * 2), std::sqrt(1 * 1.05), std::sqrt(1 * 1.05), std::sqrt(1.05 * 2),
                                   std::sqrt(1 * 2)};
  const std::vector<double> own{1, 2, 4, 1, 1.05};
  for (std::size_t m = 0; m < own.size(); ++m) {
    EXPECT_NEAR(judged[m].slower, own[m] / others[m] - 1, 1e-12) << m;
    EXPECT_NEAR(judged[m].low, judged[m].slower, 1e-12);
    EXPECT_NEAR(judged[m].high, judged[m].slower, 1e-12);
  }
}

// Steps grow longer while another program runs. Rank 1 is 5 % slower in most steps, and rank 0 waits in the middle
// ones.
TEST(SlowRanks, SecondsAndPercentAreOfOneEstimate) {
  Times times = constant({1, 1}, 21);
  for (std::size_t step = 0; step < 21; ++step) {
    const double common = std::exp(0.03 * static_cast<double>(step));
    const bool waits = step >= 8 && step < 13;
    times[0][step] = common * (waits ? 1.10 : 1.0);
    times[1][step] = common * 1.05;
  }
  std::vector<double> first = times[0], second = times[1];
  std::nth_element(first.begin(), first.begin() + 10, first.end());
  std::nth_element(second.begin(), second.begin() + 10, second.end());
  EXPECT_GT(first[10], second[10]) << "the median of the times alone calls the other rank slow";
  const std::vector<Slowness> judged = compare_times(times, 0.02, kCritical);
  EXPECT_NEAR(judged[1].slower, 0.05, 1e-12);
  EXPECT_NEAR(judged[1].seconds / judged[0].seconds, 1.05, 1e-12);
}

TEST(SlowRanks, PercentFollowFromSecondsForAnyNumberOfMembers) {
  Times times = constant({1, 1, 1, 1, 1}, 30);
  for (std::size_t m = 0; m < times.size(); ++m) {
    for (std::size_t step = 0; step < 30; ++step) times[m][step] += 0.01 * static_cast<double>((7 * m + 3 * step) % 11);
  }
  for (const std::size_t members : {5, 4, 3, 2}) {
    times.resize(members);
    const std::vector<Slowness> judged = compare_times(times, 0.02, kCritical);
    for (std::size_t m = 0; m < members; ++m) {
      std::vector<double> others;
      for (std::size_t other = 0; other < members; ++other) {
        if (other != m) others.push_back(std::log(judged[other].seconds));
      }
      EXPECT_NEAR(judged[m].slower, judged[m].seconds / std::exp(median(others)) - 1, 1e-12) << members << ", " << m;
      EXPECT_LE(judged[m].low, judged[m].slower);
      EXPECT_GE(judged[m].high, judged[m].slower);
    }
  }
}

TEST(SlowRanks, NoiseDoesNotHideASlowMemberOfFew) {
  constexpr std::size_t kSteps = 2000;
  for (const std::size_t members : {3, 4, 5}) {
    Times times(members, std::vector<double>(kSteps));
    std::mt19937 random(11);
    std::normal_distribution<double> noise(0, 0.02);
    for (std::vector<double>& member : times) {
      for (double& time : member) time = std::exp(noise(random));
    }
    for (double& time : times[1]) time *= 1.05;
    EXPECT_NEAR(compare_times(times, 0.02, kCritical)[1].slower, 0.05, 0.003) << members << " members";
  }
}

TEST(SlowRanks, OneOfFourIsAccusedAtTheThresholdAndAbove) {
  const Times times = constant({1, 1, 1.05, 1});
  const std::vector<Slowness> judged = compare_times(times, 0.0499, kCritical);
  EXPECT_TRUE(judged[2].slow);
  EXPECT_NEAR(judged[2].score.value(), std::log(1.05) / 1e-4, 1e-6) << "in units of the least error";
  EXPECT_FALSE(judged[0].slow || judged[1].slow || judged[3].slow);
  EXPECT_FALSE(judged[2].unclear);
  const std::vector<Slowness> below = compare_times(times, 0.0501, kCritical);
  EXPECT_FALSE(below[2].slow || below[2].unclear);
  const std::vector<Slowness> usual = compare_times(times, 0.0499, 500);
  EXPECT_FALSE(usual[2].slow) << "healthy ranks reach such a score";
  EXPECT_TRUE(usual[2].unclear);
}

TEST(SlowRanks, AnIntervalThatReachesBelowTheThresholdAccusesNobody) {
  Times times = constant({1, 1, 1, 1});
  for (std::size_t step = 0; step < 10; ++step) times[1][step] = step % 2 == 0 ? 1.0 : 1.06;
  const std::vector<Slowness> judged = compare_times(times, 0.02, kCritical);
  EXPECT_NEAR(judged[1].slower, std::sqrt(1.06) - 1, 1e-12) << "the median of logarithms";
  EXPECT_NEAR(judged[1].low, 0, 1e-12);
  EXPECT_NEAR(judged[1].high, 0.06, 1e-12);
  EXPECT_TRUE(judged[1].unclear && !judged[1].slow);
}

TEST(SlowRanks, AutocorrelatedStepsNeedMoreOfThem) {
  const auto slow = [](std::size_t steps) {
    Times times = constant({1, 1, 1, 1}, steps);
    for (std::size_t step = 0; step < steps; ++step) times[0][step] = 1.05 + 0.0001 * static_cast<double>(step);
    return compare_times(times, 0.02, kCritical)[0].slow;
  };
  EXPECT_FALSE(slow(20)) << "a straight line of 20 steps is worth one";
  EXPECT_TRUE(slow(200));
}

TEST(SlowRanks, WithTwoOrThreeTheSlowestIsAccusedIfItIsApartFromAllOthers) {
  const auto slow = [](const std::vector<double>& seconds) {
    std::vector<std::size_t> accused;
    const std::vector<Slowness> judged = compare_times(constant(seconds), 0.02, kCritical);
    for (std::size_t m = 0; m < judged.size(); ++m) {
      EXPECT_FALSE(judged[m].score.has_value());
      if (judged[m].slow) accused.push_back(m);
    }
    return accused;
  };
  EXPECT_EQ(slow({1, 1.05}), (std::vector<std::size_t>{1}));
  EXPECT_EQ(slow({1, 1.015}), std::vector<std::size_t>());
  EXPECT_EQ(slow({1.05, 1, 1}), (std::vector<std::size_t>{0}));
  EXPECT_EQ(slow({1.05, 1.05, 1}), std::vector<std::size_t>());
}

TEST(SlowRanks, ANodeIsNamedInsteadOfItsRanks) {
  const std::vector<std::string> hosts{"a", "b", "a", "b", "a", "b"};
  const SlowRanks result = find_slow_ranks(constant({1, 1.05, 1, 1.05, 1, 1.05}), hosts, 0.02, 1);
  ASSERT_EQ(result.nodes.size(), 1U);
  EXPECT_EQ(result.nodes[0].host, "b");
  EXPECT_EQ(result.nodes[0].ranks, (std::vector<std::size_t>{1, 3, 5}));
  EXPECT_NEAR(result.nodes[0].time.slower, 0.05, 1e-12);
  EXPECT_TRUE(result.slow.empty() && result.unclear.empty());
}

TEST(SlowRanks, OneSlowRankIsNoSlowNode) {
  const std::vector<std::string> hosts{"a", "a", "b", "b"};
  const SlowRanks result = find_slow_ranks(constant({1, 1, 1, 1.08}), hosts, 0.02, 1);
  EXPECT_TRUE(result.nodes.empty()) << "the median of node b is 4 % slower";
  EXPECT_EQ(result.slow, (std::vector<std::size_t>{3}));
}

TEST(SlowRanks, NodesOfOneRankEachAreRanks) {
  const std::vector<std::string> hosts{"a", "b", "c", "d"};
  const SlowRanks result = find_slow_ranks(constant({1, 1.05, 1, 1}), hosts, 0.02, 1);
  EXPECT_TRUE(result.nodes.empty());
  EXPECT_EQ(result.slow, (std::vector<std::size_t>{1}));
}

// The tests change some ranks' checksums. The vote must name each outvoted rank, with the first snapshot in which the
// rank's checksum differs, and must name no other rank.

using Checksums = std::vector<std::vector<std::uint64_t>>;  // [member][snapshot]

constexpr std::size_t kSnapshots = 5;

Checksums equal(std::size_t members) {
  std::vector<std::uint64_t> member(kSnapshots);
  std::iota(member.begin(), member.end(), std::uint64_t{100});
  return Checksums(members, member);
}

/// Changes a member's checksums from `snapshot` on. Two members with the same `way` get the same wrong checksums.
void corrupt_from(Checksums& all, std::size_t member, std::size_t snapshot, std::uint64_t way) {
  for (std::size_t s = snapshot; s < kSnapshots; ++s) all[member][s] ^= way << 32;
}

std::vector<std::pair<std::size_t, std::size_t>> named(const BitVote& result) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  for (const Deviation& deviation : result.named) out.emplace_back(deviation.member, deviation.snapshot);
  return out;
}

using Named = std::vector<std::pair<std::size_t, std::size_t>>;

TEST(BitVote, EqualMembersAreNotNamed) {
  for (const std::size_t members : {1, 2, 3, 4, 512}) {
    const BitVote result = vote(equal(members));
    EXPECT_TRUE(result.named.empty());
    EXPECT_FALSE(result.disagreement.has_value());
  }
}

TEST(BitVote, OneOfFourOrMoreIsNamedWhereverItGoesWrong) {
  for (const std::size_t members : {4, 5, 8, 512}) {
    for (std::size_t member = 0; member<members; member += members> 8 ? 73 : 1) {
      for (std::size_t snapshot = 0; snapshot < kSnapshots; ++snapshot) {
        Checksums all = equal(members);
        corrupt_from(all, member, snapshot, 1);
        const BitVote result = vote(all);
        EXPECT_EQ(named(result), (Named{{member, snapshot}})) << members << " members";
        EXPECT_FALSE(result.disagreement.has_value());
        EXPECT_NE(result.reference, member);
      }
    }
  }
}

TEST(BitVote, SeveralAreNamedInTheOrderInWhichTheyGoWrong) {
  Checksums all = equal(7);
  corrupt_from(all, 5, 1, 1);
  corrupt_from(all, 2, 3, 2);
  corrupt_from(all, 0, 3, 3);
  EXPECT_EQ(named(vote(all)), (Named{{5, 1}, {0, 3}, {2, 3}}));
  EXPECT_EQ(vote(all).reference, 1U);
}

TEST(BitVote, TheMajorityIsOfAllMembersAndStrict) {
  Checksums all = equal(8);
  for (const std::size_t member : {1, 4, 6}) corrupt_from(all, member, 2, 1);
  EXPECT_EQ(named(vote(all)), (Named{{1, 2}, {4, 2}, {6, 2}})) << "wrong in one way, and still outvoted";
  corrupt_from(all, 7, 2, 1);
  const BitVote tied = vote(all);
  EXPECT_TRUE(tied.named.empty());
  ASSERT_TRUE(tied.disagreement.has_value());
  EXPECT_EQ(tied.disagreement->snapshot, 2U);
  EXPECT_EQ(tied.disagreement->parties, (std::vector<std::vector<std::size_t>>{{0, 2, 3, 5}, {1, 4, 6, 7}}));
}

TEST(BitVote, ThoseNamedBeforeDoNotVoteAgain) {
  Checksums all = equal(4);
  corrupt_from(all, 3, 0, 1);
  corrupt_from(all, 1, 2, 2);
  const BitVote result = vote(all);
  EXPECT_EQ(named(result), (Named{{3, 0}})) << "of four, two that agree are no strict majority";
  ASSERT_TRUE(result.disagreement.has_value());
  EXPECT_EQ(result.disagreement->snapshot, 2U);
  EXPECT_EQ(result.disagreement->parties, (std::vector<std::vector<std::size_t>>{{0, 2}, {1}}));
}

TEST(BitVote, TwoOrThreeDiffer) {
  for (const std::size_t members : {2, 3}) {
    Checksums all = equal(members);
    corrupt_from(all, 0, 1, 1);
    const BitVote result = vote(all);
    EXPECT_TRUE(result.named.empty());
    ASSERT_TRUE(result.disagreement.has_value());
    EXPECT_EQ(result.disagreement->snapshot, 1U);
    EXPECT_EQ(result.disagreement->parties.size(), 2U);
  }
}

// The vote must name the member that has a flipped bit in a tensor. The test flips random bits, and also each bit near
// the tensor's beginning and end, because the checksum has separate code for bytes near both ends.
TEST(BitVote, EveryPlantedBitFlipIsNamed) {
  constexpr std::size_t kBytes = 1004;  // not a multiple of the checksum's stride
  std::vector<std::byte> tensor(kBytes);
  const Philox noise(7);
  for (std::size_t i = 0; i < kBytes; ++i) tensor[i] = static_cast<std::byte>(noise.block(i)[0]);
  const std::vector<std::uint64_t> others{11, 12};
  const auto snapshot = [&](std::span<const std::byte> data) {
    return combined(std::vector<std::uint64_t>{others[0], Checksum().add(data).value(), others[1]});
  };
  std::vector<std::size_t> bits(512);
  std::iota(bits.begin(), bits.begin() + 256, std::size_t{0});
  std::iota(bits.begin() + 256, bits.end(), 8 * kBytes - 256);
  for (std::size_t i = 0; i < 512; ++i) bits.push_back(noise.block(kBytes + i)[1] % (8 * kBytes));
  for (std::size_t i = 0; i < bits.size(); ++i) {
    Checksums all(4, {snapshot(tensor)});
    std::vector<std::byte> flipped = tensor;
    flipped[bits[i] / 8] ^= std::byte{1} << (bits[i] % 8);
    all[i % 4] = {snapshot(flipped)};
    EXPECT_EQ(named(vote(all)), (Named{{i % 4, 0}})) << "bit " << bits[i];
  }
}

}  // namespace

}  // namespace hvd::bench::rank_comparison_test
