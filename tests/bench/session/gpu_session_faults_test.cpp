// Runs sessions on fake GPUs in which one thing fails: the session must find the fault, name it, and keep what it has
// measured.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/bench/session/gpu_sessions.h"

namespace hvd::bench::gpu_session_faults_test {
namespace {

using test::expect_parts_within_steps;
using test::FakeGpus;
using test::gpu_options;
using test::run_gpus;
using test::SessionOutcome;

TEST(GpuSession, GradientsThatChangeAfterTheyWereReadyFailTheCheck) {
  FakeGpus gpus(2);
  gpus.faults.writes_late = true;
  Options options = gpu_options(2);
  options.gpu.schedule.overlap = false;  // with overlap, a race decides if the late write has an effect
  const SessionOutcome outcome = run_gpus(options, gpus);
  EXPECT_EQ(outcome.error.find("check_failed: rank 0: gradient of layer0, from its element 0"), 0U) << outcome.error;
}

TEST(GpuSession, WeightsThatDriftApartFailTheCheckAtTheEnd) {
  FakeGpus gpus(2);
  gpus.faults.weights_drift = true;
  const SessionOutcome outcome = run_gpus(gpu_options(2), gpus);
  EXPECT_EQ(outcome.error.find("check_failed: "), 0U) << outcome.error;
  EXPECT_NE(outcome.error.find("weights differ between ranks"), std::string::npos) << outcome.error;
  ASSERT_EQ(outcome.saved.size(), 1U);
  EXPECT_EQ(outcome.saved.begin()->second.status, RunStatus::kIncomplete);
}

TEST(GpuSession, OutOfMemorySaysWhereAndWhatFits) {
  FakeGpus gpus(2);
  gpus.faults.out_of_memory = "batch 512 needs 91234 MiB of device memory, 80000 MiB are free; batch 448 fits";
  const SessionOutcome outcome = run_gpus(gpu_options(2), gpus);
  EXPECT_EQ(outcome.error.find("out_of_memory: rank "), 0U) << outcome.error;
  EXPECT_NE(outcome.error.find("GPU "), std::string::npos) << outcome.error;
  EXPECT_NE(outcome.error.find("batch 448 fits"), std::string::npos) << outcome.error;
  EXPECT_TRUE(outcome.saved.empty());
}

TEST(GpuSession, TwoRanksOnOneGpuAreToldHowToLaunch) {
  FakeGpus gpus(1);
  const SessionOutcome outcome = run_gpus(gpu_options(2), gpus);
  EXPECT_EQ(outcome.error.find("invalid_argument: rank 0"), 0U) << outcome.error;
  EXPECT_NE(outcome.error.find("were both given"), std::string::npos) << outcome.error;
  EXPECT_NE(outcome.error.find("no more ranks per host than it has GPUs"), std::string::npos) << outcome.error;
}

TEST(GpuSession, AGpuThatCannotBeOpenedEndsAllRanks) {
  FakeGpus gpus(3);
  gpus.broken_gpu = 2;
  const SessionOutcome outcome = run_gpus(gpu_options(3), gpus);
  EXPECT_EQ(outcome.error, "backend: GPU 2 has fallen off the bus");
}

TEST(GpuSession, WithoutNcclOneGpuTrainsAndTwoAreRefused) {
  FakeGpus gpus(2);
  gpus.no_nccl = "NCCL could not be loaded";
  EXPECT_EQ(run_gpus(gpu_options(1), gpus).error, "");
  EXPECT_EQ(run_gpus(gpu_options(2), gpus).error, "unsupported: NCCL could not be loaded");
}

// The error must also end the training step that is still running.
TEST(GpuSession, ABatchThatCannotBeLoadedIsSaidOnAllRanks) {
  for (const int ranks : {1, 2}) {
    FakeGpus gpus(ranks);
    gpus.faults.load_fails_at = 40;
    gpus.faults.load_fails_on = ranks - 1;
    Options options = gpu_options(ranks);
    options.num_iters = 1000;
    const SessionOutcome outcome = run_gpus(options, gpus);
    EXPECT_NE(outcome.error.find("the copy of batch 40 failed"), std::string::npos) << outcome.error;
    EXPECT_EQ(gpus.violations(), std::vector<std::string>());
  }
}

TEST(GpuSession, AGpuThatFailsInAStepLosesNothingMeasured) {
  for (const int ranks : {1, 2}) {
    FakeGpus gpus(ranks);
    gpus.faults.breaks_at = 40;  // after the check, warm-up and recorded steps, which take some 20 launches
    Options options = gpu_options(ranks);
    options.num_iters = 1000;
    const SessionOutcome outcome = run_gpus(options, gpus);
    EXPECT_NE(outcome.error.find("an illegal memory access"), std::string::npos) << outcome.error;
    ASSERT_EQ(outcome.saved.size(), 1U);
    EXPECT_EQ(outcome.saved.begin()->second.status, RunStatus::kIncomplete);
  }
}

// Rank 1's GPU fails while samples are taken. Rank 0 must store the samples that both ranks took before the failure.
TEST(GpuSession, APeerThatFailsLosesNothingThatBothHaveMeasured) {
  FakeGpus gpus(2);
  gpus.faults.fails_on = 1;
  Options options = gpu_options(2);
  options.efficiency = true;
  options.num_iters = 1'000'000;
  SessionObserver observer;
  int visits = 0;  // number of visits of a phase; each visit ends with a sample of every rank
  observer.progress = [&](const Progress& progress) {
    if (progress.stage == "measuring" && ++visits == 5) *gpus.faults.fails_now = true;
  };
  const auto [result, saved, error] = run_gpus(options, gpus, observer);
  EXPECT_NE(error.find("an illegal memory access"), std::string::npos) << error;
  ASSERT_EQ(saved.size(), 3U) << "solo, none, full";
  std::size_t samples = 0;
  for (const auto& [uuid, record] : saved) {
    EXPECT_EQ(record.status, RunStatus::kIncomplete);
    EXPECT_FALSE(record.status_reason.empty());
    const std::size_t world = record.phase == Phase::kSolo ? 1 : 2;
    ASSERT_EQ(record.ranks.size(), world);
    for (const RankRecord& rank : record.ranks) {
      EXPECT_EQ(rank.samples.step.size(), record.ranks[0].samples.step.size());
    }
    samples += record.ranks[0].samples.step.size();
    expect_parts_within_steps(record);
  }
  EXPECT_GT(samples, 0U);
}

}  // namespace
}  // namespace hvd::bench::gpu_session_faults_test
