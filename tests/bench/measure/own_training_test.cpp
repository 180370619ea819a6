#include "bench/measure/own_training.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "bench/measure/decomposition.h"
#include "bench/measure/median.h"

namespace hvd::bench::own_training_test {
namespace {

/// Parts of a step, in seconds.
struct Parts {
  double input = 0, compute = 0, exposed = 0, update = 0;
};

RankSamples rank_of(std::size_t steps, const Parts& parts) {
  RankSamples samples;
  samples.step.assign(steps, parts.input + parts.compute + parts.exposed + parts.update);
  samples.input.assign(steps, parts.input);
  samples.compute.assign(steps, parts.compute);
  samples.exposed.assign(steps, parts.exposed);
  samples.update.assign(steps, parts.update);
  for (auto series : {&RankSamples::reduce, &RankSamples::control, &RankSamples::copy}) {
    (samples.*series).assign(steps, 0);
  }
  return samples;
}

// Solo: a step of 12, 2 of them waiting for its batch. None: 10.6 and 11.0 without input. Full: 15 on both ranks, of
// which rank 1 waits 3 for its batch, and rank 0 waits 2.4 longer than rank 1 for the reductions.
Round round_by_hand() {
  Round round;
  round.solo = {rank_of(4, {2, 9.5, 0, 0.5})};
  round.none = {rank_of(4, {1, 10.0, 0, 0.6}), rank_of(4, {3, 10.4, 0, 0.6})};
  round.full = {rank_of(4, {1, 10.4, 2.8, 0.8}), rank_of(4, {3, 10.8, 0.4, 0.8})};
  return round;
}

TEST(Input, RowsByHand) {
  const EfficiencyAnalysis analysis = analyse_efficiency(std::vector<Round>(3, round_by_hand()), {.resamples = 50});
  const std::vector<std::pair<std::string, double>> expected{{"efficiency", 10.0},
                                                             {"interference", 0.8},
                                                             {"input", 2.0},
                                                             {"stragglers", 1.2},
                                                             {"exposed_communication", 0.4},
                                                             {"control_plane", 0.0},
                                                             {"overlap_slowdown", 0.4},
                                                             {"update", 0.2},
                                                             {"residual", 0.0}};
  ASSERT_EQ(analysis.rows.size(), expected.size());
  double sum = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const DecompositionRow& row = analysis.rows[i];
    EXPECT_EQ(row.component, expected[i].first);
    EXPECT_NEAR(row.seconds, expected[i].second, 1e-12) << row.component;
    EXPECT_NEAR(*row.low, row.fraction, 1e-12) << "constant samples have no interval";
    sum += row.fraction;
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_NEAR(analysis.efficiency.value, 10.0 / 15.0, 1e-12);
}

TEST(Input, IsTheMedianOfTheMeansOverRanks) {
  Round round = round_by_hand();
  round.full[0].input = {0, 1, 5, 100};  // beside 3: means of 1.5, 2, 4 and 51.5
  EXPECT_NEAR(analyse_efficiency(std::vector<Round>(1, round)).rows[2].seconds, 3, 1e-12);
}

// Trainings of this program have an input of 0. The row must not appear, and no other row may change by a bit.
TEST(Input, WithoutWaitsNothingChanges) {
  Round without = round_by_hand(), zero = without;
  for (std::vector<RankSamples>* ranks : {&without.solo, &without.none, &without.full}) {
    for (RankSamples& rank : *ranks) rank.input.clear();
  }
  for (std::vector<RankSamples>* ranks : {&zero.solo, &zero.none, &zero.full}) {
    for (RankSamples& rank : *ranks) rank.input.assign(rank.step.size(), 0);
  }
  std::vector<Round> a(5, without), b(5, zero);
  a[1].full[0].step[2] = b[1].full[0].step[2] = 17.3;
  const EfficiencyAnalysis one = analyse_efficiency(a), other = analyse_efficiency(b);
  ASSERT_EQ(one.rows.size(), kComponents.size() - 1);
  ASSERT_EQ(other.rows.size(), one.rows.size());
  for (std::size_t i = 0; i < one.rows.size(); ++i) {
    EXPECT_EQ(one.rows[i].component, other.rows[i].component);
    EXPECT_NE(one.rows[i].component, "input");
    EXPECT_EQ(one.rows[i].fraction, other.rows[i].fraction);
    EXPECT_EQ(one.rows[i].low, other.rows[i].low);
  }
  EXPECT_EQ(one.efficiency_replicates, other.efficiency_replicates);
}

// Without a clock of their own, ranks wait in the compute of phase full.
TEST(DerivedExposed, IsFullMinusTheMedianOfNone) {
  Round round = round_by_hand();
  round.full[0].compute = {13.2, 10.0, 9.0, 13.2};
  round.full[1].compute.assign(4, 11.2);
  round.none[0].compute = {10, 10, 10, 99};
  derive_exposed(round);
  const std::vector<double> expected{3.2, 0, 0, 3.2}, compute{10, 10, 9, 10};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(round.full[0].exposed[i], expected[i], 1e-12);
    EXPECT_NEAR(round.full[0].compute[i], compute[i], 1e-12);
    EXPECT_NEAR(round.full[1].exposed[i], 0.8, 1e-12);
  }
}

/// Five rounds of three ranks. Rank 1 takes `longer` seconds more than 1 second in the compute of phase none.
std::vector<Round> rounds_with(double longer, const std::vector<double>& of_round = {0, 0.001, -0.001, 0.002, 0}) {
  std::vector<Round> rounds;
  for (const double more : of_round) {
    Round& round = rounds.emplace_back(round_by_hand());
    round.none.assign(3, rank_of(3, {0.25, 0.5, 0, 0.25}));
    round.none[1] = rank_of(3, {0.25 + longer / 10, 0.5 + longer * 0.9 + more, 0, 0.25});
  }
  return rounds;
}

TEST(LateRank, IsNamedWithThePartThatTakesLonger) {
  const std::optional<LateRank> late = late_rank(rounds_with(0.2));
  ASSERT_TRUE(late);
  EXPECT_EQ(late->rank, 1U);
  EXPECT_NEAR(late->seconds.value, 0.2, 1e-12);
  EXPECT_EQ(late->part, "forward and backward");
  EXPECT_NEAR(late->part_seconds, 0.18, 1e-12);
}

TEST(LateRank, IsNoneBelowTheThresholdOrWithAnIntervalThatHoldsZero) {
  EXPECT_TRUE(late_rank(rounds_with(0.032)));
  EXPECT_FALSE(late_rank(rounds_with(0.028)));
  EXPECT_FALSE(late_rank(rounds_with(0, {0.2, -0.2, 0.3, -0.1, 0.1}))) << "the interval holds 0";
  EXPECT_FALSE(late_rank(rounds_with(0.2, {0, 0}))) << "two rounds have no interval";
}

}  // namespace
}  // namespace hvd::bench::own_training_test
