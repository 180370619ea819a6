// Tests the log of a phase's samples and the plan of rounds. Expected values are computed by hand.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "bench/measure/median.h"
#include "bench/measure/resample.h"
#include "bench/session/message.h"
#include "bench/session/phase_log.h"
#include "bench/session/round_plan.h"

namespace hvd::bench::rounds_test {
namespace {

std::vector<Answer> answers(const std::vector<std::vector<double>>& ranks) {
  std::vector<Answer> out(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const StepSeries& series : kStepSeries) out[r].samples.*series.of_rank = ranks[r];
  }
  return out;
}

TEST(PhaseLog, SamplesAreMeansOfStepsAndTheSlowestRankCounts) {
  PhaseLog log(2, 2);
  log.add(answers({{1, 3, 5}, {2, 0, 4}}));
  EXPECT_EQ(log.samples(), 1U);
  log.add(answers({{7}, {10}}));
  ASSERT_EQ(log.samples(), 2U);
  EXPECT_EQ(log.ranks()[0].step, (std::vector<double>{2, 6}));
  EXPECT_EQ(log.ranks()[1].loss, (std::vector<double>{1, 7}));
  EXPECT_EQ(log.step_times(), (std::vector<double>{2, 7}));
}

TEST(PhaseLog, FirstSamplesOfVisitsCanBeTakenOut) {
  PhaseLog log(2, 1);
  log.add(answers({{1, 2}, {3, 1}}));
  log.end_of_visit();
  log.add(answers({{4}, {5}}));
  log.end_of_visit();
  log.add(answers({{6, 7}, {8, 9}}));
  log.end_of_visit();
  ASSERT_EQ(log.visits(), 3U);
  EXPECT_EQ(log.step_times_of_visit(2), (std::vector<double>{8, 9}));
  EXPECT_EQ(log.visit(2)[0].update, (std::vector<double>{6, 7}));
  EXPECT_EQ(log.discard_first_samples(), 2U) << "the second visit has no other";
  EXPECT_EQ(log.ranks()[0].loss, (std::vector<double>{2, 4, 7}));
  EXPECT_EQ(log.step_times(), (std::vector<double>{2, 5, 9}));
  EXPECT_EQ(log.step_times_of_visit(2), (std::vector<double>{9}));
  EXPECT_EQ(log.visit(0)[1].step, (std::vector<double>{1}));
}

// Rank 0 notices the end of the first step 0.3 s late, for which rank 1 waits in the second: 2.3 s in all.
TEST(PhaseLog, WhatDelaysAnEndOfCoupledRanksCountsOnce) {
  PhaseLog log(2, 1, true);
  log.add(answers({{1.3, 1}, {1, 1.3}}));
  EXPECT_DOUBLE_EQ(log.step_times()[0] + log.step_times()[1], 2.3);
}

// All ranks end a step together, each with a delay of its own of some 20 us (the sum of twelve uniform numbers has the
// variance 1). Steps of 45 ms would be 86 us too long on 512 ranks if the slowest rank counted: a normal variable of
// sqrt(2) 20 us has a maximum of 3.04 standard deviations in 512 draws.
TEST(PhaseLog, DelaysOfTheEndsAreNoTimeOfCoupledRanks) {
  for (const std::size_t ranks : {8U, 512U}) {
    constexpr std::size_t kSteps = 200;
    Draws draws(1, ranks);
    std::vector<std::vector<double>> steps(ranks);
    for (std::vector<double>& rank : steps) {
      double before = 0;
      for (std::size_t step = 0; step < kSteps; ++step) {
        double sum = -6;
        for (int i = 0; i < 12; ++i) sum += 1e-6 * static_cast<double>(draws.below(1'000'000));
        rank.push_back(45e-3 + 20e-6 * (sum - before));
        before = sum;
      }
    }
    PhaseLog coupled(ranks, 1, true);
    PhaseLog others(ranks, 1);
    coupled.add(answers(steps));
    others.add(answers(steps));
    EXPECT_NEAR(median(coupled.step_times()), 45e-3, 5e-6) << ranks << " ranks";
    EXPECT_GT(median(others.step_times()), 45e-3 + (ranks == 8 ? 30e-6 : 75e-6)) << ranks << " ranks";
  }
}

/// The logs of three phases and the plan of their rounds. The first step of each visit takes `first` seconds, and every
/// other step takes one second.
class Rounds {
 public:
  Rounds(const RoundPlan& empty, double first) : plan(empty), first_(first), left_(75) {}

  std::int64_t round() {
    const std::int64_t samples = next();
    for (PhaseLog& log : logs_) {
      for (std::int64_t i = 0; i < samples; ++i) {
        const double noise = 1 + 0.001 * static_cast<double>((7 * plan.rounds() + static_cast<std::uint64_t>(i)) % 5);
        log.add(answers({{noise * (i == 0 ? first_ : 1)}}));
      }
      log.end_of_visit();
    }
    left_ -= 3 * static_cast<double>(samples);
    plan.end_of_round(samples, logs());
    return samples;
  }
  std::int64_t next() {
    return plan.next_visit(
        {.sample_seconds = 1, .round_seconds = 3, .seconds_left = left_, .samples = logs_[0].samples()});
  }
  RoundPlan::Logs logs() { return {&logs_[0], &logs_[1], &logs_[2]}; }

  RoundPlan plan;

 private:
  std::array<PhaseLog, 3> logs_{PhaseLog(1, 1), PhaseLog(1, 1), PhaseLog(1, 1)};
  double first_, left_;
};

TEST(RoundPlan, FirstStepsLikeTheOthersAreKeptAndVisitsBecomeSingleSteps) {
  Rounds session(RoundPlan(false, std::nullopt, 1), 1);
  EXPECT_EQ(session.plan.unmeasured_steps(), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(session.round(), 2) << "one to compare the first with";
  EXPECT_EQ(session.round(), 1);
  EXPECT_EQ(session.plan.settle(session.logs()), 0U);
  EXPECT_EQ(session.plan.first_steps().rfind("kept: not seen to take longer", 0), 0U) << session.plan.first_steps();
  EXPECT_NE(session.plan.first_steps().find("5 visits of each phase"), std::string::npos);
  const std::vector<Round> rounds = session.plan.measured(session.logs());
  ASSERT_EQ(rounds.size(), 6U);
  EXPECT_EQ(rounds[4].full[0].step.size(), 2U) << "nothing that was measured is lost";
}

TEST(RoundPlan, FirstStepsThatTakeLongerAreDiscarded) {
  Rounds session(RoundPlan(false, std::nullopt, 1), 1.1);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(session.round(), 2);
  EXPECT_EQ(session.plan.settle(session.logs()), 7U);
  EXPECT_EQ(session.plan.first_steps().rfind("discarded: they take longer", 0), 0U) << session.plan.first_steps();
  for (const Round& round : session.plan.measured(session.logs())) EXPECT_LT(round.none[0].step.at(0), 1.05);
}

TEST(RoundPlan, WhereTwelveRoundsHardlyFitNothingIsCompared) {
  RoundPlan plan(false, std::nullopt, 1);
  EXPECT_EQ(plan.next_visit({1, 3, 51, 0}), 2) << "five rounds of two steps a visit and seven of one";
  EXPECT_EQ(plan.next_visit({1, 3, 50, 0}), 1);
  EXPECT_EQ(plan.next_visit({1, 3, 2, 0}), 1);
  PhaseLog log(1, 1);
  log.add(answers({{1}}));
  log.end_of_visit();
  plan.end_of_round(1, {&log, &log, &log});
  EXPECT_EQ(plan.next_visit({1, 3, 300, 1}), 1);
  EXPECT_EQ(plan.first_steps(), "kept: too few visits to tell whether they take longer than the others");
}

TEST(RoundPlan, SamplesThatWereAskedForAreTakenInTwelveRoundsAndInThreeOnAGpu) {
  EXPECT_EQ(Rounds(RoundPlan(false, 40, 1), 1).next(), 1) << "a second is long enough for a visit";
  EXPECT_EQ(RoundPlan(false, 40, 1).next_visit({0.01, 0.03, 75, 0}), 4);
  EXPECT_EQ(RoundPlan(false, 40, 1).next_visit({0.01, 0.03, 75, 38}), 2);
  EXPECT_EQ(RoundPlan(true, 40, 1).next_visit({0.01, 0.03, 75, 0}), 14);
  EXPECT_EQ(RoundPlan(false, 40, 1).unmeasured_steps(), 1);
}

TEST(RoundPlan, OnAGpuVisitsStayLong) {
  const RoundPlan plan(true, std::nullopt, 1);
  EXPECT_EQ(plan.next_visit({0.02, 0.06, 75, 0}), 50) << "a second";
  EXPECT_EQ(plan.next_visit({0.02, 0.06, 18, 0}), 24) << "twelve rounds of 25 steps a visit, one of them unmeasured";
  EXPECT_EQ(plan.next_visit({2, 6, 5, 0}), 3);
  EXPECT_EQ(plan.unmeasured_steps(), 1);
  EXPECT_EQ(RoundPlan::minimum_rounds(), 12U);
}

TEST(PhaseLog, AVisitsUnfinishedSampleIsDropped) {
  PhaseLog log(1, 2);
  log.add(answers({{1, 1, 9}}));
  log.end_of_visit();
  log.add(answers({{2, 4}}));
  EXPECT_EQ(log.step_times(), (std::vector<double>{1, 3}));
}

}  // namespace
}  // namespace hvd::bench::rounds_test
