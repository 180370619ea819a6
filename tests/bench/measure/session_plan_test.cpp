// Tests the plan of an interleaved session, and the promise about its time. Expected values are computed by hand. The
// clock is a number.
#include "bench/measure/session_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "bench/measure/decomposition.h"
#include "bench/session/message.h"
#include "bench/session/phase_log.h"
#include "bench/session/round_plan.h"
#include "bench/session/work_size.h"

namespace hvd::bench::session_plan_test {
namespace {

TEST(SessionPlan, PlansTwentyRoundsOrAMinuteAndNoMoreThanFit) {
  const auto plan = [](double left, double needed = 0) {
    return plan_rounds({.step_seconds = 0.5, .seconds_left = left, .samples_needed = needed, .samples_per_visit = 2});
  };
  EXPECT_EQ(plan(600).rounds, 20U);
  EXPECT_DOUBLE_EQ(plan(600).seconds, 60) << "20 rounds of 3 visits of 2 steps of 0.5 s";
  EXPECT_FALSE(plan(600).limited);
  EXPECT_EQ(plan(600, 80).rounds, 60U) << "80 samples, half as many again for safety, 2 a round";
  EXPECT_EQ(plan(100, 80).rounds, 33U);
  EXPECT_TRUE(plan(100, 80).limited);
  EXPECT_EQ(plan(44).rounds_that_fit, 14U);
  EXPECT_DOUBLE_EQ(plan(44).seconds, 42);
  EXPECT_EQ(plan(1).rounds, 1U) << "a session has at least one";
  EXPECT_EQ(plan_rounds({.seconds_left = 60}).rounds, 0U) << "nothing is known";
  EXPECT_EQ(plan_rounds({.step_seconds = 0.125, .seconds_left = 600, .seconds_to_aim_for = 60}).rounds, 160U);
}

TEST(SessionPlan, RoundsThatCompareFirstStepsTakeTwice) {
  const auto plan = [](double left) {
    return plan_rounds({.step_seconds = 1, .seconds_left = left, .judges_first_steps = true});
  };
  EXPECT_EQ(plan(60).rounds, 15U) << "five of two steps a visit, ten of one";
  EXPECT_DOUBLE_EQ(plan(60).seconds, 60);
  EXPECT_EQ(plan(50).rounds, 16U) << "17 rounds would not fit, so nothing is compared";
}

TEST(SessionPlan, UnmeasuredStepsAndSamplesOfSeveralStepsTakeTime) {
  const SessionPlan plan = plan_rounds(
      {.step_seconds = 0.1, .steps_per_sample = 10, .seconds_left = 600, .unmeasured_steps = 1, .exact_samples = 40});
  EXPECT_EQ(plan.rounds, 40U);
  EXPECT_NEAR(plan.seconds, 40 * 3 * 11 * 0.1, 1e-9);
}

TEST(SessionPlan, TheLineSaysWhatIsPlannedAndHowLongItTakes) {
  const SessionPlan plan{.rounds = 14, .samples_per_visit = 2, .seconds = 62.2};
  EXPECT_EQ(plan_line(plan, 0.74, 1), "14 rounds of 3 phases, 2 steps a visit, 0.74 s a step: about 62 s");
  EXPECT_EQ(plan_line({.rounds = 1, .samples_per_visit = 1, .seconds = 21}, 6.94, 1),
            "1 round of 3 phases, 1 step a visit, 6.9 s a step: about 21 s");
  EXPECT_EQ(seconds_text(0.0087), "8.7 ms");
}

TEST(ShortestSession, HasTwelveRoundsAndTwelveStepsBefore) {
  const ShortestSession shortest;
  EXPECT_DOUBLE_EQ(shortest.seconds(6.9), 48 * 6.9);
  EXPECT_DOUBLE_EQ(shortest.longest_step(96), 2);
  EXPECT_EQ(shortest.rounds(6.9, 62), 2U) << "62 / 20.7";
  const ShortestSession gpu{.steps_per_visit = 4, .steps_before = 13};
  EXPECT_DOUBLE_EQ(gpu.seconds(0.1), 15.7);
}

TEST(WorkThatFits, LowersTheBatchFirstAndTheImageLast) {
  const WorkSize asked{4, 224};
  const auto fits = [&](double longest) { return work_that_fits(asked, 6.9, longest, 32).value_or(WorkSize{0, 0}); };
  EXPECT_EQ(fits(6.9), asked);
  EXPECT_EQ(fits(6), (WorkSize{3, 224})) << "0.9 * 6 s / 1.725 s an image";
  EXPECT_EQ(fits(2), (WorkSize{1, 224}));
  EXPECT_EQ(fits(1.9), (WorkSize{1, 192})) << "1.725 s * (192 / 224)^2 = 1.27 s";
  EXPECT_EQ(fits(1.4), (WorkSize{1, 160})) << "0.88 s";
  EXPECT_EQ(fits(0.001), (WorkSize{0, 0})) << "not even 32 x 32, which takes 0.035 s";
  EXPECT_FALSE(work_that_fits({1, 299}, 10, 0.8, 75)) << "images of Inception V3 have 96 pixels at least";
  EXPECT_EQ(smallest_work({4, 299}, 75), (WorkSize{1, 96}));
  EXPECT_EQ(smallest_work({4, 32}, 32), (WorkSize{1, 32}));
  EXPECT_EQ(work_that_fits({1, 32}, 10, 1, 32), std::nullopt);
}

TEST(WorkThatFits, TheLearningRateFollowsTheBatch) {
  bench::Setup setup;
  setup.model.batch_size = 4;
  setup.sgd.learning_rate = 0.01;
  take_work({1, 160}, setup);
  EXPECT_EQ(work_of(setup), (WorkSize{1, 160}));
  EXPECT_DOUBLE_EQ(setup.sgd.learning_rate, 0.0025);
}

TEST(WorkThatFits, TheAdviceNamesTheTimeAndTheOptions) {
  bench::Setup setup;
  setup.model.model = "vgg16";
  setup.model.batch_size = 4;
  setup.model.image_size = 224;
  setup.sgd.learning_rate = 0.01;
  EXPECT_EQ(
      room_advice(setup, {}, 6.9, 100, false),
      "vgg16 takes 6.9 s a step here, so 12 rounds of the three phases would take about 6 min, and --max-time is "
      "100 s; --batch-size 1 --learning-rate 0.0025 should fit (--fit chooses a size that does), or give --max-time "
      "332");
  EXPECT_NE(
      room_advice(setup, {}, 6.9, 75, false).find("--batch-size 1 --image-size 192 --learning-rate 0.0025 should fit"),
      std::string::npos);
  EXPECT_NE(room_advice(setup, {}, 6.9, 75, true).find("a step here, more than when --fit timed it, so 12"),
            std::string::npos);
  setup.replay.emplace();
  EXPECT_EQ(room_advice(setup, {}, 6.9, 75, false).find("--batch-size"), std::string::npos) << "a replay has one batch";
  setup.model.batch_size = 1;
  EXPECT_EQ(fit_line(setup, {4, 224}, 6.9),
            "vgg16 takes 6.9 s a step here with batch 4: batch 1, images 224 x 224, learning rate 0.01");
}

/// Runs the decisions of a session against a clock that is a number. A step of round `i` takes `step(i)` seconds.
struct Clocked {
  double promised = 0, took = 0;
  std::size_t rounds = 0;
  std::string reason;
};

template <class Step>
Clocked session(double maximum, double half_width, Step&& step) {
  RoundPlan rounds(false, std::nullopt, 1);
  std::array<PhaseLog, 3> logs{PhaseLog(1, 1), PhaseLog(1, 1), PhaseLog(1, 1)};
  StoppingRule rule{.minimum_rounds = RoundPlan::minimum_rounds(), .maximum_seconds = maximum};
  const double begin = 10;  // after the warm-up
  double now = begin, seen = 1;
  const auto times = [&] {
    return RoundPlan::Times{.sample_seconds = seen,
                            .round_seconds = 3 * seen,
                            .seconds_left = std::min(rule.maximum_seconds, rule.latest_seconds) - now,
                            .samples = logs[0].samples()};
  };
  Clocked out;
  const SessionPlan plan = rounds.plan(times(), 0);
  out.promised = plan.seconds;
  promise(rule, plan, now);
  for (;;) {
    const std::int64_t samples = rounds.next_visit(times());
    seen = step(rounds.rounds());
    for (PhaseLog& log : logs) {
      std::vector<Answer> answers(1);
      for (const StepSeries& series : kStepSeries) {
        (answers[0].samples.*series.of_rank).assign(static_cast<std::size_t>(samples), seen);
      }
      log.add(answers);
      log.end_of_visit();
      now += seen * static_cast<double>(samples);
    }
    rounds.end_of_round(samples, {&logs[0], &logs[1], &logs[2]});
    const MeasurementState state{.samples = logs[0].samples(),
                                 .rounds = rounds.rounds(),
                                 .half_width = half_width,
                                 .elapsed_seconds = now,
                                 .next_seconds = 3 * seen * static_cast<double>(rounds.next_visit(times()))};
    if (const auto reason = reason_to_stop(rule, state)) {
      out.took = now - begin;
      out.rounds = rounds.rounds();
      out.reason = *reason;
      return out;
    }
  }
}

constexpr auto kSteady = [](std::size_t) { return 1.0; };

TEST(Promise, IsKeptWhateverTheMachineDoes) {
  const auto kept = [](const Clocked& session) {
    return session.took >= session.promised * 2 / 3 && session.took <= session.promised * 4 / 3;
  };
  const auto slower = [](std::size_t round) { return round < 4 ? 1.0 : 1.6; };
  const auto faster = [](std::size_t) { return 0.4; };
  const auto spell = [](std::size_t round) { return round >= 3 && round < 6 ? 2.0 : 1.0; };
  for (const double maximum : {75.0, 100.0, 300.0}) {
    for (const double half_width : {0.001, 0.5}) {
      EXPECT_TRUE(kept(session(maximum, half_width, kSteady)));
      EXPECT_TRUE(kept(session(maximum, half_width, slower)));
      EXPECT_TRUE(kept(session(maximum, half_width, faster)));
      EXPECT_TRUE(kept(session(maximum, half_width, spell)));
    }
  }
}

TEST(Promise, TwelveRoundsAndNoMoreThanThePlannedTime) {
  const Clocked quiet = session(300, 0.001, kSteady);
  EXPECT_DOUBLE_EQ(quiet.promised, 75) << "20 rounds, and five that compare first steps";
  EXPECT_EQ(quiet.reason, "interval narrow enough");
  EXPECT_GE(quiet.rounds, 12U);
  const Clocked noisy = session(300, 0.5, kSteady);
  EXPECT_EQ(noisy.reason, "planned time") << "an interval that stays wide does not make the session longer";
  EXPECT_NEAR(noisy.took, noisy.promised, 3);
  const Clocked capped = session(52, 0.5, kSteady);
  EXPECT_EQ(capped.reason, "time cap");
  EXPECT_GE(capped.rounds, 12U);
}

TEST(EfficiencyText, IsNeverWithoutItsInterval) {
  EXPECT_EQ(efficiency_text({0.976, 0.97, 0.986}), "97.6 % [97.0, 98.6]");
  EXPECT_EQ(efficiency_text({0.851, 0.464, 1.014}), "not resolved: between 46 and 101 %");
  EXPECT_EQ(efficiency_text({0.898, kNoInterval, kNoInterval}), "not resolved: too few rounds for an interval");
  EXPECT_TRUE(is_resolved({0.5, 0.375, 0.5625}));
  EXPECT_FALSE(is_resolved({0.5, 0.375, 0.625}));
  EXPECT_FALSE(estimate_of({"efficiency", 0.9, 1, std::nullopt, std::nullopt}).has_interval());
}

}  // namespace
}  // namespace hvd::bench::session_plan_test
