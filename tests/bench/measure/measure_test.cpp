// Compares the statistics with values computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "bench/measure/decomposition.h"
#include "bench/measure/median.h"
#include "bench/measure/resample.h"
#include "bench/measure/session_plan.h"
#include "bench/measure/stopping_rule.h"

namespace hvd::bench::measure_test {
namespace {

using Series = std::vector<double>;

TEST(Median, OddEvenAndSingle) {
  EXPECT_EQ(median(Series{3, 1, 2}), 2);
  EXPECT_EQ(median(Series{4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median(Series{7}), 7);
  EXPECT_THROW((void)median(Series{}), std::logic_error);
}

TEST(MaxOverRanks, SampleBySample) {
  const std::vector<Series> ranks{{1, 5, 2}, {3, 4, 2}};
  EXPECT_EQ(max_over_ranks(ranks), (Series{3, 5, 2}));
  EXPECT_EQ(min_over_ranks(ranks), (Series{1, 4, 2}));
  EXPECT_EQ(mean_over_ranks(ranks), (Series{2, 4.5, 2}));
  EXPECT_TRUE(max_over_ranks({}).empty());
}

TEST(Autocorrelation, OfRanksWithBiasCorrection) {
  // The centred ranks of 1..10 are -4.5 .. 4.5. Their squares sum to 82.5. The products of neighbours sum to 57.75, the
  // sum of (k - 4.5)(k - 3.5) for k = 0..8. With the bias correction, 57.75 / 82.5 = 0.7 becomes (10 * 0.7 + 1) / 7 =
  // 1.14, which is limited to 0.9.
  Series rising(10);
  std::iota(rising.begin(), rising.end(), 1.0);
  EXPECT_DOUBLE_EQ(lag_one_autocorrelation(rising), 0.9);
  // An alternating series has a negative correlation, which counts as 0.
  EXPECT_EQ(lag_one_autocorrelation(Series{1, 2, 1, 2, 1, 2, 1, 2, 1, 2}), 0);
  // The ranks minus 3.5 are -0.5 -2.5 -1.5 0.5 -3.5 1.5 3.5 2.5. Their squares sum to 42, products of neighbours to
  // 11.25.
  const Series mixed{13, 11, 12, 14, 10, 15, 1000, 16};
  EXPECT_NEAR(lag_one_autocorrelation(mixed), (8 * (11.25 / 42) + 1) / 5, 1e-12);
  EXPECT_EQ(lag_one_autocorrelation(Series{1, 2, 3}), 0) << "too few to tell";
}

TEST(BlockLength, GrowsWithCorrelationAndIsCapped) {
  EXPECT_EQ(block_length(100, 0), 1U);
  // 6^(1/3) (0.5 / 0.75)^(2/3) 100^(1/3) = 1.8171 * 0.7631 * 4.6416 = 6.44
  EXPECT_EQ(block_length(100, 0.5), 7U);
  EXPECT_EQ(block_length(12, 0.9), 3U) << "at most a quarter of the samples";
  EXPECT_EQ(block_length(2, 0.9), 1U);
}

TEST(Resample, BlocksWrapAround) {
  Draws draws(1, 0);
  const Series samples{0, 1, 2, 3, 4};
  Series out;
  for (int repeat = 0; repeat < 20; ++repeat) {
    resample_blocks(samples, 3, draws, out);
    ASSERT_EQ(out.size(), 5U);
    // Elements 1, 2 and 4 continue a block of three, so each is the successor of the element before it; 0 follows 4.
    for (const std::size_t i : {1U, 2U, 4U}) {
      EXPECT_EQ(out[i], static_cast<double>((static_cast<int>(out[i - 1]) + 1) % 5));
    }
  }
}

TEST(Resample, PercentilesAreSymmetric) {
  Series values(100);
  std::iota(values.begin(), values.end(), 0.0);
  const auto [low, high] = percentile_interval(values, 0.90);
  EXPECT_EQ(low, 5);
  EXPECT_EQ(high, 94);
}

TEST(Bootstrap, WidensFromTheValueAndStopsAtTheFloor) {
  // Doubling the deviations -2, 2, -1, 1 from 10 gives 6, 14, 8, 12. The floor raises 6 to 7. The interval leaves out a
  // quarter of the values at each end, so it goes from 8 to 12.
  const Bootstrap bootstrap = bootstrap_of(10, {8, 12, 9, 11}, {.factor = 2, .floor = 7}, 0.5);
  EXPECT_EQ(bootstrap.replicates, (Series{7, 14, 8, 12})) << "in the order of drawing";
  EXPECT_EQ(bootstrap.estimate.low, 8);
  EXPECT_EQ(bootstrap.estimate.high, 12);
  const Bootstrap above = bootstrap_of(10, {11, 12, 13, 14}, {}, 0.5);
  EXPECT_EQ(above.estimate.low, 10) << "an interval holds its value";
  EXPECT_EQ(above.estimate.high, 13);
}

TEST(MedianTime, StoredReplicatesGiveTheInterval) {
  const Series samples{1.0, 1.2, 0.9, 1.1, 1.05, 0.97, 1.3, 1.01, 1.02, 0.99};
  Bootstrap bootstrap = median_time(samples, {.resamples = kStoredReplicates, .seed = 7});
  ASSERT_EQ(bootstrap.replicates.size(), kStoredReplicates);
  EXPECT_FALSE(std::is_sorted(bootstrap.replicates.begin(), bootstrap.replicates.end())) << "in the order of drawing";
  const auto [low, high] = percentile_interval(bootstrap.replicates, 0.95);
  EXPECT_EQ(low, bootstrap.estimate.low);
  EXPECT_EQ(high, bootstrap.estimate.high);
  const Bootstrap of_more = median_time(samples, {.seed = 7});
  EXPECT_EQ(of_more.replicates.size(), kStoredReplicates) << "1,000 are drawn";
  EXPECT_EQ(of_more.estimate.low, median_interval(samples, {.seed = 7}).low);
  EXPECT_TRUE(median_time(Series{1.0, 1.2}).replicates.empty());
}

TEST(MedianTime, ReplicatesAreTimes) {
  // A resample that draws 0.01 twice has a median of 0.01. If the distance of 0.01 from the median 1 is multiplied by
  // sqrt(3 / 2), the result is 1 - 0.99 sqrt(3 / 2), which is below zero.
  const Bootstrap bootstrap = median_time(Series{0.01, 1, 1});
  EXPECT_LT(bootstrap.estimate.low, 0);
  EXPECT_EQ(*std::min_element(bootstrap.replicates.begin(), bootstrap.replicates.end()), 1e-3);
}

TEST(MedianInterval, ConstantSamplesHaveNoWidthAndTheSeedDecides) {
  const Estimate constant = median_interval(Series{2, 2, 2, 2});
  EXPECT_EQ(constant.low, 2);
  EXPECT_EQ(constant.high, 2);
  const Series samples{1.0, 1.2, 0.9, 1.1, 1.05, 0.97, 1.3, 1.01, 1.02, 0.99};
  const Estimate first = median_interval(samples, {.seed = 7});
  const Estimate second = median_interval(samples, {.seed = 7});
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
  EXPECT_DOUBLE_EQ(first.value, 1.015);
  EXPECT_LT(first.low, first.value);
  EXPECT_GT(first.high, first.value);
}

TEST(MedianInterval, FewerThanThreeSamplesHaveNone) {
  for (const Series& few : {Series{1.0}, Series{1.0, 1.2}}) {
    const Estimate estimate = median_interval(few);
    EXPECT_FALSE(estimate.has_interval()) << few.size();
    EXPECT_EQ(estimate.value, median(few));
    EXPECT_EQ(relative_half_width(estimate), 0) << "unknown";
    EXPECT_FALSE(images_per_second(estimate, 8).has_interval());
    EXPECT_EQ(images_per_second(estimate, 8).value, 8 / median(few));
  }
  EXPECT_TRUE(median_interval(Series{1.0, 1.2, 1.1}).has_interval());
}

TEST(MedianInterval, HalfWidthAndRate) {
  EXPECT_DOUBLE_EQ(relative_half_width({10, 9, 12}), 0.15);
  const Estimate rate = images_per_second({2, 1, 4}, 8);
  EXPECT_EQ(rate.value, 4);
  EXPECT_EQ(rate.low, 2);
  EXPECT_EQ(rate.high, 8);
}

TEST(SteadyState, DriftIgnoresAnOutlier) {
  EXPECT_EQ(relative_drift(Series{1, 1, 1, 9, 1, 1}), 0);
  // The series 1.0, 0.9, ... 0.5 has slope -0.1 over five steps and median 0.75.
  EXPECT_NEAR(relative_drift(Series{1.0, 0.9, 0.8, 0.7, 0.6, 0.5}), -0.5 / 0.75, 1e-12);
  EXPECT_EQ(drift_noise(Series{1, 1, 1, 1}), 0);
}

SteadyOptions steady_options() {
  return {.minimum_steps = 2, .window_steps = 4, .window_seconds = 0, .drift = 0.02, .maximum_steps = 20};
}

TEST(SteadyState, WaitsForTheDriftToEnd) {
  SteadyState state(steady_options());
  for (const double step : {4.0, 3.0, 2.5, 2.2, 2.1}) state.add(step);
  EXPECT_FALSE(state.steady());
  for (const double step : {2.0, 2.0, 2.0, 2.0}) state.add(step);
  EXPECT_TRUE(state.steady());
  EXPECT_NE(state.text().find("steady after 9 steps"), std::string::npos) << state.text();
}

TEST(SteadyState, NeedsMinimumAndWindow) {
  SteadyState state(steady_options());
  for (int i = 0; i < 5; ++i) state.add(1);
  EXPECT_FALSE(state.steady()) << "two discarded and a window of four are six";
  state.add(1);
  EXPECT_TRUE(state.steady());
}

TEST(SteadyState, WindowCoversASecond) {
  SteadyOptions options = steady_options();
  options.window_seconds = 1;
  SteadyState state(options);
  for (int i = 0; i < 10; ++i) state.add(0.1);
  EXPECT_FALSE(state.steady());
  for (int i = 0; i < 3; ++i) state.add(0.1);
  EXPECT_TRUE(state.steady());
}

TEST(SteadyState, NoiseIsNotDrift) {
  SteadyState state(steady_options());
  for (const double step : {1.0, 1.0, 1.10, 0.92, 1.09, 0.95}) state.add(step);
  EXPECT_TRUE(state.steady()) << state.text();
}

TEST(SteadyState, GivesUpAndSaysSo) {
  SteadyState state(steady_options());
  double step = 1;
  while (!state.finished()) state.add(step *= 0.9);
  EXPECT_TRUE(state.gave_up());
  EXPECT_FALSE(state.steady());
  EXPECT_EQ(state.steps(), 20U);
  EXPECT_EQ(state.text().rfind("not steady after 20 steps", 0), 0U) << state.text();
}

TEST(SteadyState, TooFewStepsAreNoVerdict) {
  SteadyOptions options = steady_options();
  options.maximum_seconds = 5;
  SteadyState state(options);
  for (int i = 0; i < 5; ++i) state.add(1);
  EXPECT_TRUE(state.gave_up());
  EXPECT_EQ(state.text(), "not steady as far as 5 steps tell: fewer than the 6 that it takes to judge");
}

TEST(StoppingRule, Reasons) {
  const StoppingRule rule{
      .minimum_samples = 10, .maximum_samples = 50, .target_half_width = 0.02, .maximum_seconds = 100};
  EXPECT_FALSE(reason_to_stop(rule, {.samples = 9, .half_width = 0.01, .elapsed_seconds = 1}));
  EXPECT_EQ(reason_to_stop(rule, {.samples = 10, .half_width = 0.02, .elapsed_seconds = 1}), "interval narrow enough");
  EXPECT_FALSE(reason_to_stop(rule, {.samples = 49, .half_width = 0.03, .elapsed_seconds = 1}));
  EXPECT_EQ(reason_to_stop(rule, {.samples = 50, .half_width = 0.03, .elapsed_seconds = 1}), "iteration cap");
  EXPECT_EQ(reason_to_stop(rule, {.samples = 3, .half_width = 0.03, .elapsed_seconds = 95, .next_seconds = 6}),
            "time cap");
  EXPECT_FALSE(reason_to_stop(rule, {.samples = 0, .elapsed_seconds = 500})) << "nothing measured yet";
}

TEST(StoppingRule, ANarrowIntervalOfFewRoundsIsNotEnough) {
  const StoppingRule rule{.minimum_samples = 10, .minimum_rounds = 10, .maximum_seconds = 100};
  EXPECT_FALSE(reason_to_stop(rule, {.samples = 900, .rounds = 9, .half_width = 0.001, .elapsed_seconds = 1}));
  EXPECT_EQ(reason_to_stop(rule, {.samples = 900, .rounds = 10, .half_width = 0.001}), "interval narrow enough");
  EXPECT_EQ(reason_to_stop(rule, {.samples = 9, .rounds = 2, .elapsed_seconds = 99, .next_seconds = 2}), "time cap");
}

TEST(Visits, TwentyRoundsFitTheTimeLeft) {
  const auto samples = [](double sample, double left, std::size_t done, std::int64_t shortest) {
    return visit_samples({.sample_seconds = sample,
                          .round_seconds = 3 * sample,
                          .seconds_left = left,
                          .rounds_done = done,
                          .shortest = shortest});
  };
  EXPECT_EQ(samples(0.125, 90, 0, 1), 8) << "a second; there is time for twelve";
  EXPECT_EQ(samples(0.125, 45, 0, 1), 6) << "45 s / 20 rounds / 0.375 s";
  EXPECT_EQ(samples(0.125, 45, 10, 1), 8) << "ten rounds are done";
  EXPECT_EQ(samples(1, 60, 0, 1), 1);
  EXPECT_EQ(samples(1, 60, 0, 2), 2) << "while first steps are compared with others";
  EXPECT_EQ(samples(9, 60, 3, 1), 1) << "nothing fits: as short as can be";
  EXPECT_EQ(samples(1e-9, 1e9, 0, 1), 100);
  EXPECT_EQ(samples(0, 60, 0, 2), 2) << "nothing known";
  EXPECT_EQ(samples(0.125, 6, 40, 1), 8) << "more rounds than aimed for";
}

TEST(FirstSteps, AreJudgedPhaseByPhase) {
  const std::vector<Series> alike{{1.00, 1.01}, {1.02, 1.00}, {0.99, 1.00}, {1.01, 1.02, 0.98}, {1.00, 0.99}};
  std::vector<Series> slower = alike;
  for (Series& visit : slower) visit[0] *= 1.1;
  const std::array<PhaseVisits, 2> both_alike{{{"solo", alike}, {"full", alike}}};
  EXPECT_FALSE(judge_first_steps(both_alike, 1).discard) << judge_first_steps(both_alike, 1).text;
  const std::array<PhaseVisits, 2> one_slower{{{"solo", alike}, {"full", slower}}};
  const FirstStepVerdict verdict = judge_first_steps(one_slower, 1);
  EXPECT_TRUE(verdict.discard) << verdict.text;
  EXPECT_NE(verdict.text.find(", full +11.1 %"), std::string::npos) << verdict.text;
  EXPECT_NE(verdict.text.find("(5 visits of each phase)"), std::string::npos) << verdict.text;
  const std::array<PhaseVisits, 1> few{{{"full", {{2, 1}, {2, 1}, {2, 1}, {2, 1}, {2}}}}};
  EXPECT_FALSE(judge_first_steps(few, 1).discard);
  EXPECT_NE(judge_first_steps(few, 1).text.find("too few visits"), std::string::npos);
}

TEST(StoppingRule, ExactCountIgnoresTheInterval) {
  const StoppingRule rule{.exact_samples = 30, .minimum_samples = 10, .maximum_seconds = 100};
  EXPECT_FALSE(reason_to_stop(rule, {.samples = 29, .half_width = 0, .elapsed_seconds = 1}));
  EXPECT_EQ(reason_to_stop(rule, {.samples = 30, .half_width = 1, .elapsed_seconds = 1}), "iterations asked for");
  EXPECT_EQ(samples_missing(rule, {.samples = 12}), 18);
}

TEST(StoppingRule, MissingSamplesFollowTheSquareRoot) {
  const StoppingRule rule{.minimum_samples = 10, .target_half_width = 0.02};
  EXPECT_DOUBLE_EQ(samples_missing(rule, {.samples = 20, .half_width = 0.04}), 60);
  EXPECT_DOUBLE_EQ(samples_missing(rule, {.samples = 4, .half_width = 0.01}), 6);
}

RankSamples rank_samples(std::size_t steps, double compute, double exposed, double update) {
  RankSamples s;
  s.step.assign(steps, compute + exposed + update);
  s.compute.assign(steps, compute);
  s.exposed.assign(steps, exposed);
  s.update.assign(steps, update);
  s.reduce.assign(steps, 3 * exposed);
  s.control.assign(steps, exposed);
  s.copy.assign(steps, 0);
  s.loss.assign(steps, 1);
  return s;
}

// Step times in seconds of one rank (phase solo) or two ranks. Solo: 10. None: 10.6 and 11.0 (mean 10.8, slowest 11),
// with 10.0 and 10.4 of computation and an update of 0.6. Full: 12.0 and 12.0, with 10.4 and 10.8 of computation, 0.8
// and 0.4 of waiting, and an update of 0.8. The control plane takes a quarter of the waiting.
Round round_by_hand(std::size_t steps) {
  Round round;
  round.solo = {rank_samples(steps, 9.5, 0, 0.5)};
  round.none = {rank_samples(steps, 10.0, 0, 0.6), rank_samples(steps, 10.4, 0, 0.6)};
  round.full = {rank_samples(steps, 10.4, 0.8, 0.8), rank_samples(steps, 10.8, 0.4, 0.8)};
  return round;
}

TEST(Decomposition, ByHand) {
  const std::vector<Round> rounds(3, round_by_hand(4));
  const EfficiencyAnalysis analysis = analyse_efficiency(rounds, {.resamples = 50});
  const std::vector<std::pair<std::string, double>> expected{
      {"efficiency", 10.0},   {"interference", 0.8},     {"stragglers", 0.2}, {"exposed_communication", 0.3},
      {"control_plane", 0.1}, {"overlap_slowdown", 0.4}, {"update", 0.2},     {"residual", 0.0}};
  ASSERT_EQ(analysis.rows.size(), expected.size());
  double sum = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const DecompositionRow& row = analysis.rows[i];
    EXPECT_EQ(row.component, expected[i].first);
    EXPECT_NEAR(row.seconds, expected[i].second, 1e-12) << row.component;
    EXPECT_NEAR(row.fraction, expected[i].second / 12.0, 1e-12) << row.component;
    EXPECT_NEAR(*row.low, row.fraction, 1e-12) << "constant samples have no interval";
    EXPECT_NEAR(*row.high, row.fraction, 1e-12);
    sum += row.fraction;
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_NEAR(analysis.efficiency.value, 10.0 / 12.0, 1e-12);
  EXPECT_NEAR(analysis.against_independent.value, (2 / 12.0) / (1 / 10.6 + 1 / 11.0), 1e-12);
}

TEST(Decomposition, TheStepOfCoupledRanksIsTheirMean) {
  Round round = round_by_hand(4);
  for (double& step : round.full[0].step) step = 11.5;
  for (double& step : round.full[1].step) step = 12.5;
  EXPECT_NEAR(analyse_efficiency(std::vector<Round>(3, round)).efficiency.value, 10 / 12.5, 1e-12);
  round.coupled = true;
  EXPECT_NEAR(analyse_efficiency(std::vector<Round>(3, round)).efficiency.value, 10 / 12.0, 1e-12);
}

// A slow spell that covers whole rounds cancels in each ratio. A spell that covers a single visit does not move the
// median over the rounds.
TEST(Decomposition, WhatARoundSharesCancels) {
  std::vector<Round> rounds(9, round_by_hand(2));
  const auto slow = [](std::vector<RankSamples>& ranks, double factor) {
    for (RankSamples& rank : ranks) {
      for (Series* series : {&rank.step, &rank.compute, &rank.exposed, &rank.update}) {
        for (double& value : *series) value *= factor;
      }
    }
  };
  for (const std::size_t round : {2U, 3U, 4U, 5U}) {
    for (std::vector<RankSamples>* phase : {&rounds[round].solo, &rounds[round].none, &rounds[round].full}) {
      slow(*phase, 1.7);
    }
  }
  slow(rounds[6].none, 2);
  slow(rounds[8].full, 3);
  const EfficiencyAnalysis analysis = analyse_efficiency(rounds, {.resamples = 200});
  const std::vector<double> expected{10.0, 0.8, 0.2, 0.3, 0.1, 0.4, 0.2, 0.0};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(analysis.rows[i].fraction, expected[i] / 12.0, 1e-3) << analysis.rows[i].component;
  }
}

TEST(Decomposition, AnIntervalThatHoldsZeroIsNotResolved) {
  EXPECT_TRUE((DecompositionRow{"", 0.02, 1, -0.01, 0.05}.unresolved()));
  EXPECT_TRUE((DecompositionRow{"", 0.02, 1, 0.0, 0.05}.unresolved()));
  EXPECT_FALSE((DecompositionRow{"", 0.02, 1, 0.01, 0.05}.unresolved()));
  EXPECT_FALSE((DecompositionRow{"", -0.02, 1, -0.05, -0.01}.unresolved()));
  EXPECT_FALSE((DecompositionRow{"", 0, 0, 0.0, 0.0}.unresolved())) << "known to be 0";
  EXPECT_FALSE((DecompositionRow{"", 0.02, 1, std::nullopt, std::nullopt}.unresolved())) << "no interval at all";
}

TEST(Decomposition, OneRoundOrTwoSamplesHaveNoInterval) {
  for (const std::vector<Round>& rounds :
       {std::vector<Round>(1, round_by_hand(12)), std::vector<Round>(2, round_by_hand(1))}) {
    const EfficiencyAnalysis analysis = analyse_efficiency(rounds, {.resamples = 50});
    EXPECT_NEAR(analysis.efficiency.value, 10.0 / 12.0, 1e-12);
    EXPECT_FALSE(analysis.efficiency.has_interval());
    EXPECT_FALSE(analysis.against_independent.has_interval());
    EXPECT_TRUE(analysis.efficiency_replicates.empty());
    for (const DecompositionRow& row : analysis.rows) EXPECT_FALSE(row.low || row.high) << row.component;
  }
}

TEST(Decomposition, RowsSumToOneWhateverTheSamples) {
  std::vector<Round> rounds(4, round_by_hand(6));
  const Philox noise(42);
  std::uint64_t i = 0;
  for (Round& round : rounds) {
    for (std::vector<RankSamples>* phase : {&round.solo, &round.none, &round.full}) {
      for (RankSamples& rank : *phase) {
        for (Series* series : {&rank.step, &rank.compute, &rank.exposed, &rank.update}) {
          for (double& value : *series) value *= 1 + 0.2 * static_cast<double>(noise.uniform(i++));
        }
      }
    }
  }
  EfficiencyAnalysis analysis = analyse_efficiency(rounds, {.resamples = kStoredReplicates});
  double sum = 0;
  for (const DecompositionRow& row : analysis.rows) {
    sum += row.fraction;
    EXPECT_LE(*row.low, *row.high);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_LT(analysis.efficiency.low, analysis.efficiency.value);
  EXPECT_GT(analysis.efficiency.high, analysis.efficiency.value);
  ASSERT_EQ(analysis.efficiency_replicates.size(), kStoredReplicates);
  const auto [low, high] = percentile_interval(analysis.efficiency_replicates, 0.95);
  EXPECT_EQ(low, analysis.efficiency.low);
  EXPECT_EQ(high, analysis.efficiency.high);
}

}  // namespace
}  // namespace hvd::bench::measure_test
