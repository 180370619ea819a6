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
#include "bench/train/message.h"
#include "bench/train/session.h"
#include "models/replay/replay.h"
#include "tests/bench/fake_gpus.h"
#include "tests/bench/gpu_sessions.h"

namespace hvd::bench::gpu_session_test {
namespace {

namespace fs = std::filesystem;
using test::FakeGpus;
using test::FakeStep;
using test::gpu_options;

struct Outcome {
  SessionResult result;
  std::map<std::string, RunRecord> saved;  ///< the last save of every run
  std::string error;                       ///< "code: text"; empty if the session ended well
};

Outcome run(const Options& options, FakeGpus& gpus) {
  Outcome outcome;
  SessionObserver observer;
  observer.save = [&](const RunRecord& record) { outcome.saved[record.uuid] = record; };
  int runs = 0;
  try {
    outcome.result = run_session(
        options, observer, [&](RunRecord& record) { record.uuid = std::to_string(++runs); }, &gpus);
  } catch (const Error& error) {
    outcome.error = std::string(name(error.code())) + ": " + error.what();
  }
  return outcome;
}

/// Runs a session that must end well.
SessionResult good(const Options& options, FakeGpus& gpus) {
  Outcome outcome = run(options, gpus);
  EXPECT_EQ(outcome.error, "");
  for (const std::string& violation : gpus.violations()) ADD_FAILURE() << violation;
  return std::move(outcome.result);
}

std::string fact(const RunRecord& run, const std::string& key) {
  const auto found = run.provenance.find(key);
  return found == run.provenance.end() ? "" : found->second.value;
}

std::string weights_of(const RunRecord& run) { return run.checks.substr(run.checks.find("weights ")); }

void expect_parts_within_steps(const RunRecord& run) {
  for (const RankRecord& rank : run.ranks) {
    const RankSamples& s = rank.samples;
    for (const StepSeries& series : kStepSeries) ASSERT_EQ((s.*series.of_rank).size(), s.step.size());
    for (std::size_t i = 0; i < s.step.size(); ++i) {
      EXPECT_GT(s.compute[i], 0);
      EXPECT_GT(s.update[i], 0);
      EXPECT_GE(s.step[i] + 1e-12, s.compute[i] + s.exposed[i] + s.update[i]);
      EXPECT_GT(s.launch[i], 0);
      EXPECT_GT(s.host[i], fact(run, "gpu.option.launch_ahead") == "yes" ? 0 : s.launch[i]);
      EXPECT_GT(s.loss[i], i > 0 ? s.loss[i - 1] : 0) << "the number of the step";
    }
  }
}

TEST(GpuSession, OneGpu) {
  FakeGpus gpus(1);
  const SessionResult result = good(gpu_options(1), gpus);
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
  const auto graph = std::find_if(result.notes.begin(), result.notes.end(),
                                  [](const std::string& note) { return note.starts_with("a step is one graph of "); });
  ASSERT_NE(graph, result.notes.end());
  EXPECT_NE(graph->find(" nodes in a row: "), std::string::npos) << *graph;
  EXPECT_EQ(graph->find("priority"), std::string::npos) << *graph;
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
  EXPECT_NE(good(options, gpus).runs.at(0).checks.find("100 % of 388 elements"), std::string::npos);

  FakeGpus others(2);
  others.faults.first_overflows = true;
  options.gpu.loss_scale = 1024;  // with a given scale the step cannot be repeated
  EXPECT_NE(run(options, others).error.find("is not a finite number on rank"), std::string::npos);
}

// In fp16 a sum could overflow, so the session divides the loss by the number of ranks. It does not ask NCCL for a
// mean, because NVLS does not support NCCL's mean in fp16.
TEST(GpuSession, Fp16DividesInTheLossAndSums) {
  std::string weights;
  for (const DataType compute : {DataType::kF32, DataType::kF16}) {
    FakeGpus gpus(2);
    Options options = gpu_options(2);
    options.compute = compute;
    options.allreduce = compute;
    const RunRecord run = good(options, gpus).runs.at(0);
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
  std::map<std::string, RunRecord> saved;
  SessionObserver observer;
  observer.nccl_log = [] { return std::string("h:1:2 [0] NCCL INFO Using network Socket\n"); };
  observer.save = [&](const RunRecord& record) { saved[record.uuid] = record; };
  const SessionResult result = run_session(
      gpu_options(2), observer, [](RunRecord& record) { record.uuid = "1"; }, &gpus);
  EXPECT_EQ(fact(result.runs.at(0), "nccl.network"), "Socket");
  EXPECT_EQ(std::count(result.notes.begin(), result.notes.end(), "NCCL's network: Socket"), 1);
  EXPECT_EQ(fact(result.runs.at(0), "caution.one_visible_gpu"), "");
  EXPECT_EQ(fact(good(gpu_options(2), gpus).runs.at(0), "nccl.network"), "unknown");
}

TEST(GpuSession, TwoLevelsOnOneNodeAreOne) {
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.comm = CommBackend::kNccl;
  options.gpu.two_levels = true;
  const SessionResult result = good(options, gpus);
  ASSERT_EQ(result.runs.size(), 1U);
  EXPECT_EQ(result.runs[0].comm, "nccl");
  const bool said = std::any_of(result.notes.begin(), result.notes.end(), [](const std::string& note) {
    return note.find("--comm hierarchical on one node") != std::string::npos;
  });
  EXPECT_TRUE(said);
}

TEST(GpuSession, EfficiencyOfTwoRanks) {
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.efficiency = true;
  const SessionResult result = good(options, gpus);
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

TEST(GpuSession, GraphAndEagerAndNegotiatedTrainAlike) {
  std::vector<std::string> weights;
  for (const bool overlap : {true, false}) {
    for (const auto& [graph, ahead] : {std::pair(true, true), std::pair(true, false), std::pair(false, true)}) {
      FakeGpus gpus(3, 7);
      Options options = gpu_options(3);
      options.gpu.schedule = {.overlap = overlap, .graph = graph, .ahead = ahead};
      weights.push_back(weights_of(good(options, gpus).runs[0]));
    }
  }
  FakeGpus gpus(3, 8);
  Options options = gpu_options(3);
  options.engine.schedule = Schedule::kNegotiated;
  options.engine.negotiation.fusion.threshold_bytes = 900;
  weights.push_back(weights_of(good(options, gpus).runs[0]));
  for (const std::string& each : weights) EXPECT_EQ(each, weights[0]);
}

TEST(GpuSession, TrainsOnTheImagesOfItsSeed) {
  FakeGpus images(1);
  FakeGpus other_images(1);
  Options options = gpu_options(1);
  const std::string weights = weights_of(good(options, images).runs[0]);
  options.seed = 2;
  EXPECT_NE(weights_of(good(options, other_images).runs[0]), weights);
}

TEST(GpuSession, KnobsReachTheStepAndTheRecord) {
  FakeGpus gpus(1);
  Options options = gpu_options(1);
  options.gpu.tf32 = true;
  options.gpu.fusion_level = 1;
  options.gpu.deterministic = true;
  options.gpu.tuning_folder = "winners";
  const RunRecord run = good(options, gpus).runs[0];
  EXPECT_EQ(run.compute_type, "tf32");
  EXPECT_TRUE(gpus.asked.tf32);
  EXPECT_TRUE(gpus.asked.deterministic);
  EXPECT_EQ(gpus.asked.fusion.level, 1);
  EXPECT_EQ(gpus.asked.winners_folder, "winners");
  EXPECT_EQ(fact(run, "gpu.option.fusion_level"), "1");
  EXPECT_TRUE(run.provenance.at("gpu.option.deterministic").in_fingerprint);
}

TEST(GpuSession, TheRecordSaysHowStepsWereLaunched) {
  const auto note_of = [](const SessionResult& result) {
    const auto found = std::find_if(result.notes.begin(), result.notes.end(), [](const std::string& note) {
      return note.find(" ms by the GPU's events (") != std::string::npos;
    });
    return found == result.notes.end() ? "" : *found;
  };
  Options options = gpu_options(2);
  FakeGpus captured(2);
  const SessionResult ahead = good(options, captured);
  EXPECT_EQ(fact(ahead.runs[0], "gpu.option.graph"), "yes");
  EXPECT_EQ(fact(ahead.runs[0], "gpu.option.launch_ahead"), "yes");
  EXPECT_TRUE(ahead.runs[0].provenance.at("gpu.option.launch_ahead").in_fingerprint);
  EXPECT_TRUE(note_of(ahead).ends_with(" of the step) goes on while the one before it runs")) << note_of(ahead);
  options.gpu.schedule.ahead = false;
  FakeGpus waited_for(2);
  const SessionResult waited = good(options, waited_for);
  EXPECT_EQ(fact(waited.runs[0], "gpu.option.launch_ahead"), "no");
  EXPECT_TRUE(note_of(waited).ends_with(" of the step) is part of that")) << note_of(waited);
  options.gpu.schedule.ahead = true;
  options.engine.schedule = Schedule::kNegotiated;
  FakeGpus negotiated(2);
  const RunRecord enqueued = good(options, negotiated).runs[0];
  EXPECT_EQ(fact(enqueued, "gpu.option.graph"), "no");
  EXPECT_EQ(fact(enqueued, "gpu.option.launch_ahead"), "no");
  options = gpu_options(1);
  options.profile = true;
  FakeGpus profiled(1);
  EXPECT_EQ(fact(good(options, profiled).runs[0], "gpu.option.graph"), "no");
}

TEST(GpuSession, FiguresHaveTheirBoundsBeside) {
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.profile = true;
  const SessionResult result = good(options, gpus);
  const RunRecord& run = result.runs[0];
  const std::string text = closing_text(result, {});
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
  EXPECT_EQ(closing_text(good(options, others), {}).find("operations on rank 0"), std::string::npos) << "on request";
}

TEST(GpuSession, AReplayProfileComesFromEvents) {
  const fs::path file = fs::temp_directory_path() / ("hvd_gpu_replay_" + std::to_string(::getpid()));
  FakeGpus gpus(2);
  Options options = gpu_options(2);
  options.record_replay_file = file.string();
  good(options, gpus);
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

// -- faults that must be found --------------------------------------------------------------------------------

TEST(GpuSession, GradientsThatChangeAfterTheyWereReadyFailTheCheck) {
  FakeGpus gpus(2);
  gpus.faults.writes_late = true;
  Options options = gpu_options(2);
  options.gpu.schedule.overlap = false;  // with overlap this is a race, with any outcome
  const Outcome outcome = run(options, gpus);
  EXPECT_EQ(outcome.error.find("check_failed: rank 0: gradient of layer0, from its element 0"), 0U) << outcome.error;
}

TEST(GpuSession, WeightsThatDriftApartFailTheCheckAtTheEnd) {
  FakeGpus gpus(2);
  gpus.faults.weights_drift = true;
  const Outcome outcome = run(gpu_options(2), gpus);
  EXPECT_EQ(outcome.error.find("check_failed: "), 0U) << outcome.error;
  EXPECT_NE(outcome.error.find("weights differ between ranks"), std::string::npos) << outcome.error;
  ASSERT_EQ(outcome.saved.size(), 1U);
  EXPECT_EQ(outcome.saved.begin()->second.status, RunStatus::kIncomplete);
}

TEST(GpuSession, OutOfMemorySaysWhereAndWhatFits) {
  FakeGpus gpus(2);
  gpus.faults.out_of_memory = "batch 512 needs 91234 MiB of device memory, 80000 MiB are free; batch 448 fits";
  const Outcome outcome = run(gpu_options(2), gpus);
  EXPECT_EQ(outcome.error.find("out_of_memory: rank "), 0U) << outcome.error;
  EXPECT_NE(outcome.error.find("GPU "), std::string::npos) << outcome.error;
  EXPECT_NE(outcome.error.find("batch 448 fits"), std::string::npos) << outcome.error;
  EXPECT_TRUE(outcome.saved.empty());
}

TEST(GpuSession, TwoRanksOnOneGpuAreToldHowToLaunch) {
  FakeGpus gpus(1);
  const Outcome outcome = run(gpu_options(2), gpus);
  EXPECT_EQ(outcome.error.find("invalid_argument: rank 0"), 0U) << outcome.error;
  EXPECT_NE(outcome.error.find("were both given"), std::string::npos) << outcome.error;
  EXPECT_NE(outcome.error.find("no more ranks per host than it has GPUs"), std::string::npos) << outcome.error;
}

TEST(GpuSession, AGpuThatCannotBeOpenedEndsAllRanks) {
  FakeGpus gpus(3);
  gpus.broken_gpu = 2;
  const Outcome outcome = run(gpu_options(3), gpus);
  EXPECT_EQ(outcome.error, "backend: GPU 2 has fallen off the bus");
}

TEST(GpuSession, WithoutNcclOneGpuTrainsAndTwoAreRefused) {
  FakeGpus gpus(2);
  gpus.no_nccl = "NCCL could not be loaded";
  EXPECT_EQ(run(gpu_options(1), gpus).error, "");
  EXPECT_EQ(run(gpu_options(2), gpus).error, "unsupported: NCCL could not be loaded");
}

// The error must also end the step that is in flight.
TEST(GpuSession, ABatchThatCannotBeLoadedIsSaidOnAllRanks) {
  for (const int ranks : {1, 2}) {
    FakeGpus gpus(ranks);
    gpus.faults.load_fails_at = 40;
    gpus.faults.load_fails_on = ranks - 1;
    Options options = gpu_options(ranks);
    options.num_iters = 1000;
    const Outcome outcome = run(options, gpus);
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
    const Outcome outcome = run(options, gpus);
    EXPECT_NE(outcome.error.find("an illegal memory access"), std::string::npos) << outcome.error;
    ASSERT_EQ(outcome.saved.size(), 1U);
    EXPECT_EQ(outcome.saved.begin()->second.status, RunStatus::kIncomplete);
  }
}

// Rank 1's GPU fails while samples are taken. Rank 0 must store the samples that both ranks have taken before.
TEST(GpuSession, APeerThatFailsLosesNothingThatBothHaveMeasured) {
  FakeGpus gpus(2);
  gpus.faults.fails_on = 1;
  Options options = gpu_options(2);
  options.efficiency = true;
  options.num_iters = 1'000'000;
  std::map<std::string, RunRecord> saved;
  SessionObserver observer;
  observer.save = [&](const RunRecord& record) { saved[record.uuid] = record; };
  int visits = 0;  // number of phases visited; each ends with a sample of every rank
  observer.progress = [&](const Progress& progress) {
    if (progress.stage == "measuring" && ++visits == 5) *gpus.faults.fails_now = true;
  };
  int runs = 0;
  std::string error;
  try {
    run_session(
        options, observer, [&](RunRecord& record) { record.uuid = std::to_string(++runs); }, &gpus);
  } catch (const Error& caught) {
    error = caught.what();
  }
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
}  // namespace hvd::bench::gpu_session_test
