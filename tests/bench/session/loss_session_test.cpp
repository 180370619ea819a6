// Tests sessions on fake GPUs whose loss becomes infinite, NaN or too small.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "bench/session/session.h"
#include "tests/bench/fake_gpus.h"
#include "tests/bench/session/gpu_sessions.h"

namespace hvd::bench::loss_session_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Ending {
  std::map<Phase, RunRecord> saved;  ///< each phase's record as last saved
  std::vector<std::string> notes;
  std::string error;
  Errc code = Errc::kInterrupted;  ///< code of the session's error; kInterrupted if it threw none
};

/// Runs a session on `ranks` fake GPUs. Step s has the loss losses[s]; later steps repeat the last loss of `losses`.
Ending session(Options options, const std::vector<double>& losses, int ranks = 1) {
  test::FakeGpus gpus(ranks);
  gpus.faults.losses = losses;
  Ending ending;
  SessionObserver observer;
  observer.save = [&](const RunRecord& record) { ending.saved[record.phase] = record; };
  try {
    ending.notes =
        run_session(
            options, observer, [](RunRecord& record) { record.uuid = std::string(name(record.phase)); }, &gpus)
            .notes;
  } catch (const Error& error) {
    ending.error = error.what();
    ending.code = error.code();
  }
  for (const std::string& violation : gpus.violations()) ADD_FAILURE() << violation;
  return ending;
}

/// Returns the losses of `good` + 1 steps: the loss is 7 in each step but the last, and `bad` in the last step.
std::vector<double> after(std::size_t good, double bad) {
  std::vector<double> losses(good, 7.0);
  losses.push_back(bad);
  return losses;
}

TEST(Loss, OneThatIsNotFiniteIsAFailedCheckAndNothingMeasuredIsLost) {
  // Before its 200 samples a session makes 4 warm-up steps, 10 recorded steps and 3 more recorded steps. It takes the
  // samples in segments of half a second. The bad loss of step 31 is therefore among the samples, in a segment that
  // depends on the machine's speed.
  Options options = test::gpu_options(1);
  options.num_iters = 200;
  const Ending ending = session(options, after(30, kNan));
  EXPECT_EQ(ending.code, Errc::kCheckFailed);
  EXPECT_NE(ending.error.find("the loss of rank 0 was nan in training step "), std::string::npos) << ending.error;
  EXPECT_NE(ending.error.find("lower --learning-rate"), std::string::npos) << ending.error;
  const RunRecord& run = ending.saved.at(Phase::kFull);
  EXPECT_EQ(run.status, RunStatus::kIncomplete);
  EXPECT_EQ(run.status_reason, ending.error);
  EXPECT_NE(run.checks.find("failed: the loss of rank 0 was nan"), std::string::npos) << run.checks;
  EXPECT_GE(run.measured_steps, 13);
  EXPECT_EQ(run.ranks.at(0).samples.loss.front(), 7.0);
}

TEST(Loss, OneThatIsNotFiniteInTheWarmUpMarksTheRunToo) {
  const Ending ending = session(test::gpu_options(2), after(2, kNan), 2);
  EXPECT_EQ(ending.code, Errc::kCheckFailed);
  const RunRecord& run = ending.saved.at(Phase::kFull);
  EXPECT_EQ(run.status, RunStatus::kIncomplete);
  EXPECT_NE(run.checks.find("failed: the loss of rank 0 was nan"), std::string::npos) << run.checks;
  EXPECT_EQ(run.measured_steps, 0);
}

TEST(Loss, OneThatHasCollapsedCarriesACaution) {
  const Ending ending = session(test::gpu_options(2), after(12, 1e-9), 2);
  EXPECT_EQ(ending.error, "");
  const RunRecord& run = ending.saved.at(Phase::kFull);
  EXPECT_EQ(run.status, RunStatus::kComplete);
  ASSERT_TRUE(run.provenance.contains("caution.collapsed_loss"));
  EXPECT_FALSE(run.provenance.at("caution.collapsed_loss").in_fingerprint);
  const std::string caution = "caution: " + run.provenance.at("caution.collapsed_loss").value;
  EXPECT_EQ(std::count(ending.notes.begin(), ending.notes.end(), caution), 1) << caution;
}

TEST(Loss, AGoodOneCarriesNone) {
  const Ending ending = session(test::gpu_options(2), {7.0}, 2);
  EXPECT_EQ(ending.error, "");
  EXPECT_FALSE(ending.saved.at(Phase::kFull).provenance.contains("caution.collapsed_loss"));
  EXPECT_EQ(ending.saved.at(Phase::kFull).checks.find("failed"), std::string::npos);
}

// The network whose loss collapsed trains in all phases, so the records of phases solo and none need the caution too.
TEST(Loss, ACautionHoldsForAllPhasesOfASession) {
  Options options = test::gpu_options(2);
  options.efficiency = true;
  const Ending ending = session(options, after(12, 1e-9), 2);
  EXPECT_EQ(ending.error, "");
  for (const Phase phase : {Phase::kSolo, Phase::kNone, Phase::kFull}) {
    EXPECT_TRUE(ending.saved.at(phase).provenance.contains("caution.collapsed_loss")) << name(phase);
  }
}

// Earlier versions cycled the labels and stored no fact `data.labels`. Their records are comparable with new records
// whose labels are cycled.
TEST(Loss, TheRuleOfTheLabelsIsAFactOfTheRecord) {
  Options options = test::gpu_options(2);
  const RunRecord fresh = session(options, {7.0}, 2).saved.at(Phase::kFull);
  EXPECT_EQ(fresh.provenance.at("data.labels").value, "fresh");
  EXPECT_TRUE(fresh.provenance.at("data.labels").in_fingerprint);
  EXPECT_EQ(fresh.provenance.at("sgd.learning_rate").value, "0.01");
  EXPECT_EQ(fresh.provenance.at("sgd.learning_rate_scaled").value, "0.02");
  EXPECT_FALSE(fresh.provenance.at("sgd.learning_rate_bound").in_fingerprint);
  EXPECT_EQ(fresh.provenance.at("sgd.learning_rate_warm_up_steps").value, "200");

  options.label_rule = models::LabelRule::kCycled;
  const RunRecord cycled = session(options, {7.0}, 2).saved.at(Phase::kFull);
  EXPECT_EQ(cycled.provenance.at("data.labels").value, "cycled");
  EXPECT_FALSE(cycled.provenance.at("data.labels").in_fingerprint);
}

}  // namespace
}  // namespace hvd::bench::loss_session_test
