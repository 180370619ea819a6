// Runs whole sessions on fake GPUs: N ranks as threads, a fake NCCL, a fake network. Every test also checks that the
// fakes report no fault, such as a race, memory freed in use, or an object that outlives its GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench/cli/report.h"
#include "bench/session/message.h"
#include "bench/session/session.h"
#include "bench/world/cores.h"
#include "models/replay/replay.h"
#include "tests/bench/session/gpu_sessions.h"

namespace hvd::bench::gpu_session_test {
namespace {

namespace fs = std::filesystem;
using test::expect_parts_within_steps;
using test::fact;
using test::FakeGpus;
using test::FakeStep;
using test::good_run;
using test::gpu_options;
using test::note_with;
using test::run_gpus;

std::string weights_of(const RunRecord& run) { return run.checks.substr(run.checks.find("weights ")); }

TEST(GpuSession, OneGpu) {
  FakeGpus gpus(1);
  const SessionResult result = good_run(gpu_options(1), gpus);
  ASSERT_EQ(result.runs.size(), 1U);
  const RunRecord& run = result.runs[0];
  EXPECT_EQ(run.status, RunStatus::kComplete);
  EXPECT_EQ(run.device, "cuda");
  EXPECT_EQ(run.comm, "solo");
  EXPECT_EQ(run.measured_steps, 6);
  EXPECT_EQ(run.final_loss, run.ranks.at(0).samples.loss.back());
  EXPECT_DOUBLE_EQ(run.images_per_second->value, 2 / run.step_seconds->value);
  expect_parts_within_steps(run);
  EXPECT_EQ(std::count(result.notes.begin(), result.notes.end(), "not served at a: level 2, conv+b"), 1);
  const std::string graph = note_with(result, "a step is one graph of ");
  test::expect_contains(graph, " nodes in a row: ");
  EXPECT_EQ(graph.find("priority"), std::string::npos) << graph;
  EXPECT_EQ(fact(run, "gpu.cuda_driver"), "13.0");
  EXPECT_EQ(fact(run, "compute.backend"), "fake step");
  EXPECT_TRUE(run.provenance.at("gpu.name").in_fingerprint);
  EXPECT_FALSE(run.provenance.at("gpu.uuid").in_fingerprint);
  EXPECT_EQ(run.provenance.count("comm.segment_bytes"), 0U) << "of host algorithms";
}

TEST(GpuSession, AnOverflowWhileTheLossScaleSettlesIsNoFault) {
  FakeGpus gpus(2);
  gpus.faults.first_overflows = true;
  Options options = gpu_options(2);
  options.compute = DataType::kF16;
  EXPECT_NE(good_run(options, gpus).runs.at(0).checks.find("100 % of 388 elements"), std::string::npos);

  FakeGpus others(2);
  others.faults.first_overflows = true;
  options.gpu.loss_scale = 1024;  // an overflowing step is repeated only if the session chooses the scale
  EXPECT_NE(run_gpus(options, others).error.find("is not a finite number on rank"), std::string::npos);
}

// In fp16 a sum could overflow, so the session divides the loss by the number of ranks. The session does not ask NCCL
// for a mean, because NVLS does not support NCCL's mean in fp16.
TEST(GpuSession, Fp16DividesInTheLossAndSums) {
  std::string weights;
  for (const DataType compute : {DataType::kF32, DataType::kF16}) {
    FakeGpus gpus(2);
    Options options = gpu_options(2);
    options.compute = compute;
    options.allreduce = compute;
    const RunRecord run = good_run(options, gpus).runs.at(0);
    EXPECT_EQ(run.allreduce_type, compute == DataType::kF16 ? "fp16" : "fp32");
    EXPECT_NE(run.checks.find("100 % of 388 elements"), std::string::npos) << run.checks;
    for (const std::string& line : gpus.hub().log()) EXPECT_EQ(line.find("a mean"), std::string::npos) << line;
    if (!weights.empty()) {
      EXPECT_EQ(weights_of(run), weights) << "halves are exact";
    }
    weights = weights_of(run);
  }
}

TEST(GpuSession, SaysWhichNetworkNcclChoseAndWhereARankIsWrong) {
  FakeGpus gpus(2);
  SessionObserver observer;
  observer.nccl_log = [] { return std::string("h:1:2 [0] NCCL INFO Using network Socket\n"); };
  const SessionResult result = good_run(gpu_options(2), gpus, observer);
  EXPECT_EQ(fact(result.runs.at(0), "nccl.network"), "Socket");
  EXPECT_EQ(std::count(result.notes.begin(), result.notes.end(), "NCCL's network: Socket"), 1);
  EXPECT_EQ(fact(result.runs.at(0), "caution.one_visible_gpu"), "");
  const std::vector<std::string> hosts(2, "node0");
  EXPECT_EQ(fact(result.runs.at(0), "caution.few_cpus"),
            few_cpus(share_cores(std::vector(2, rank_cores()), hosts, 0), hosts))
      << "as this machine is";
  EXPECT_EQ(fact(good_run(gpu_options(2), gpus).runs.at(0), "nccl.network"), "unknown");
}

TEST(GpuSession, EfficiencyOfTwoRanks) {
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.efficiency = true;
  const SessionResult result = good_run(options, gpus);
  ASSERT_EQ(result.runs.size(), 3U);
  const RunRecord& solo = result.runs[0];
  const RunRecord& full = result.runs[2];
  EXPECT_EQ(solo.phase, Phase::kSolo);
  EXPECT_EQ(solo.comm, "solo");
  EXPECT_EQ(full.comm, "nccl");
  EXPECT_EQ(full.world_size, 2);
  EXPECT_EQ(full.buckets, 2);
  EXPECT_NE(full.checks.find("100 % of 388 elements"), std::string::npos) << full.checks;
  EXPECT_NE(full.checks.find("equal on all ranks"), std::string::npos) << full.checks;
  for (const RunRecord& run : result.runs) expect_parts_within_steps(run);
  for (const RankRecord& rank : full.ranks) {
    EXPECT_TRUE(std::all_of(rank.samples.reduce.begin(), rank.samples.reduce.end(), [](double s) { return s > 0; }));
    EXPECT_EQ(rank.planned_bytes, static_cast<std::int64_t>(2 * FakeStep::kElements * sizeof(float)));
    EXPECT_GT(rank.peak_bytes, rank.baseline_bytes);
  }
  EXPECT_EQ(fact(full, "gpu.uuid"), "GPU-fake-0; GPU-fake-1");
  EXPECT_FALSE(full.decomposition.empty());
}

TEST(GpuSession, FitKeepsTheBatchThatFits) {
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.efficiency = options.fit = true;
  options.num_iters.reset();
  options.max_time = std::chrono::seconds(3600);
  SessionObserver observer;
  std::vector<std::string> told;
  observer.tell = [&](const std::string& line) { told.push_back(line); };
  observer.stop_requested = [&] { return told.size() < 2 ? std::string() : std::string("SIGTERM"); };
  const test::SessionOutcome outcome = run_gpus(options, gpus, observer);
  EXPECT_EQ(outcome.error.rfind("interrupted: ", 0), 0U) << outcome.error;
  ASSERT_EQ(told.size(), 2U);
  EXPECT_NE(told[0].find(" a step here with batch 2: batch 2, images 32 x 32"), std::string::npos) << told[0];
  EXPECT_EQ(told[1].rfind("  plan       ", 0), 0U) << told[1];
  ASSERT_EQ(outcome.saved.size(), 3U);
  EXPECT_EQ(outcome.saved.at("1").batch_size, 2);
  EXPECT_EQ("  fit        " + fact(outcome.saved.at("1"), "measurement.fit"), told[0]);
}

TEST(GpuSession, FitLowersTheBatchOnAllRanksAndRefusesWhatDoesNotFitEvenSo) {
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.efficiency = options.fit = true;
  options.num_iters.reset();
  options.num_batches_per_iter = 100'000;
  options.num_warmup_batches = 8;  // more than the first steps, by which nothing is refused
  options.max_time = std::chrono::seconds(1);
  SessionObserver observer;
  std::vector<std::string> told;
  observer.tell = [&](const std::string& line) { told.push_back(line); };
  const test::SessionOutcome outcome = run_gpus(options, gpus, observer);
  EXPECT_EQ(outcome.error.rfind("inconclusive: too few rounds would fit", 0), 0U) << outcome.error;
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find(" a step here with batch 2: batch 1, images 32 x 32"), std::string::npos) << told[0];
  EXPECT_TRUE(outcome.saved.empty());
}

TEST(GpuSession, TrainsOnTheImagesOfItsSeed) {
  FakeGpus images(1);
  FakeGpus other_images(1);
  Options options = gpu_options(1);
  const std::string weights = weights_of(good_run(options, images).runs[0]);
  options.seed = 2;
  EXPECT_NE(weights_of(good_run(options, other_images).runs[0]), weights);
}

TEST(GpuSession, KnobsReachTheStepAndTheRecord) {
  FakeGpus gpus(1);
  Options options = gpu_options(1);
  options.gpu.tf32 = true;
  options.gpu.fusion_level = 1;
  options.gpu.deterministic = true;
  options.gpu.tuning_folder = "winners";
  options.threads = 3;
  const RunRecord run = good_run(options, gpus).runs[0];
  EXPECT_EQ(run.compute_type, "tf32");
  EXPECT_TRUE(gpus.asked.tf32);
  EXPECT_TRUE(gpus.asked.deterministic);
  EXPECT_EQ(gpus.asked.fusion.level, 1);
  EXPECT_EQ(gpus.asked.winners_folder, "winners");
  EXPECT_EQ(gpus.asked_threads, 3);
  EXPECT_EQ(fact(run, "gpu.option.fusion_level"), "1");
  EXPECT_TRUE(run.provenance.at("gpu.option.deterministic").in_fingerprint);
}

TEST(GpuSession, TheRecordSaysHowStepsWereLaunched) {
  constexpr const char* kTimed = " ms by the GPU's events (";
  Options options = gpu_options(2);
  FakeGpus captured(2);
  const SessionResult ahead = good_run(options, captured);
  EXPECT_EQ(fact(ahead.runs[0], "gpu.option.graph"), "yes");
  EXPECT_EQ(fact(ahead.runs[0], "gpu.option.launch_ahead"), "yes");
  EXPECT_TRUE(ahead.runs[0].provenance.at("gpu.option.launch_ahead").in_fingerprint);
  EXPECT_TRUE(note_with(ahead, kTimed).ends_with(" of the step) overlaps with the previous step"));
  options.gpu.schedule.ahead = false;
  FakeGpus waited_for(2);
  const SessionResult waited = good_run(options, waited_for);
  EXPECT_EQ(fact(waited.runs[0], "gpu.option.launch_ahead"), "no");
  EXPECT_TRUE(note_with(waited, kTimed).ends_with(" of the step) is part of that time"));
  options.gpu.schedule.ahead = true;
  options.engine.schedule = Schedule::kNegotiated;
  FakeGpus negotiated(2);
  const RunRecord enqueued = good_run(options, negotiated).runs[0];
  EXPECT_EQ(fact(enqueued, "gpu.option.graph"), "no");
  EXPECT_EQ(fact(enqueued, "gpu.option.launch_ahead"), "no");
  options = gpu_options(1);
  options.profile = true;
  FakeGpus profiled(1);
  EXPECT_EQ(fact(good_run(options, profiled).runs[0], "gpu.option.graph"), "no");
}

TEST(GpuSession, FiguresHaveTheirBoundsBeside) {
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.profile = true;
  const SessionResult result = good_run(options, gpus);
  const RunRecord& run = result.runs[0];
  const std::string text = closing_text(result, {}, true);
  const auto count = [&](const std::string& what) {
    std::size_t times = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++times;
    return times;
  };
  const double per_gpu = run.images_per_second->value * run.flops_per_image / 2;
  char achieved[80], utilisation[80];
  std::snprintf(achieved, sizeof achieved, "%.2f TFLOP/s, %.2f per rank", 2e-12 * per_gpu, 1e-12 * per_gpu);
  std::snprintf(utilisation, sizeof utilisation, ": %.1f %% of the peak's FLOP/s; unfused roofline ",
                100 * per_gpu / 67e12);
  EXPECT_EQ(count(achieved), 1U) << text;
  EXPECT_EQ(count(utilisation), 1U) << text;
  EXPECT_EQ(count("67.0 TFLOP/s in fp32, 4.80 TB/s"), 1U) << text;
  EXPECT_EQ(count("operations on rank 0, per step"), 1U) << text;
  EXPECT_EQ(count("       1        3.000       1.000    3.00  memory      relu\n"), 1U) << text;
  EXPECT_EQ(count("       1        2.000       1.000    2.00  arithmetic  conv\n"), 1U) << text;
  EXPECT_GT(std::stod(fact(run, "bound.step_seconds")), 0);

  options.profile = false;
  FakeGpus others(2);
  EXPECT_EQ(closing_text(good_run(options, others), {}).find("operations on rank 0"), std::string::npos)
      << "on request";
}

TEST(GpuSession, AReplayProfileComesFromEvents) {
  const fs::path file = fs::temp_directory_path() / ("hvd_gpu_replay_" + std::to_string(::getpid()));
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.record_replay_file = file.string();
  good_run(options, gpus);
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  fs::remove(file);
  const models::ReplayProfile profile = models::parse_replay(text.str(), "the recorded file");
  ASSERT_EQ(profile.gradients.size(), FakeStep::kCounts.size());
  double last = 0;
  for (const auto& gradient : profile.gradients) {
    EXPECT_GT(gradient.ready_seconds, last) << gradient.name;
    EXPECT_EQ(gradient.submit_seconds, 0) << "one launch hands over all of them";
    last = gradient.ready_seconds;
  }
  EXPECT_GE(profile.backward_end_seconds, last);
  EXPECT_GT(profile.update_seconds, 0);
}

}  // namespace
}  // namespace hvd::bench::gpu_session_test
