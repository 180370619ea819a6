// Tests sessions that replay a profile on fake GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "bench/cli/report.h"
#include "bench/world/training_options.h"
#include "models/replay/replay.h"
#include "tests/bench/scratch.h"
#include "tests/bench/session/gpu_sessions.h"

namespace hvd::bench::gpu_replay_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::fact;
using test::FakeGpus;
using test::good_run;
using test::note_with;
using test::run_gpus;

class GpuReplay : public ::testing::Test {
 protected:
  GpuReplay() {
    profile_.model = "bert";
    profile_.unit = "sequences";
    profile_.units_per_step = 8;
    profile_.device = "a GPU";
    profile_.compute_type = "fp16";
    profile_.source_run = "00000000";
    profile_.backward_end_seconds = 0.003;
    profile_.update_seconds = 0.0005;
    profile_.factors = {1, 0.5, 2, 1.5};
    profile_.gradients = {{"a", 100, 0.0001, 0.001}, {"b", 300, 0.0002, 0.002}, {"c", 7, 0.0003, 0.003}};
  }

  [[nodiscard]] Options replay_options(int ranks) const {
    std::ofstream(folder_ / "bert.replay") << models::to_text(profile_);
    Options options = test::gpu_options(ranks);
    options.image_size = options.batch_size = 0;
    options.replay_file = folder_ / "bert.replay";
    return options;
  }

  const test::Folder folder_;
  models::ReplayProfile profile_;
};

TEST_F(GpuReplay, ReducesAndCapturesAsTrainingDoes) {
  std::array<std::vector<std::chrono::nanoseconds>, 2> waits;
  FakeGpus gpus(2);
  gpus.missing = "there is no cuDNN";  // a replay needs none
  gpus.on_timer = [&](int gpu, std::chrono::nanoseconds wait) {
    waits.at(static_cast<std::size_t>(gpu)).push_back(wait);
  };
  Options options = replay_options(2);
  options.efficiency = true;
  const SessionResult result = good_run(options, gpus);
  ASSERT_EQ(result.runs.size(), 3U);
  for (const RunRecord& run : result.runs) {
    EXPECT_EQ(run.device, "replay");
    EXPECT_TRUE(on_gpus(run));
    EXPECT_EQ(fact(run, "gpu.option.graph"), "yes");
    EXPECT_EQ(fact(run, "compute.backend"), "replay of run 00000000 (bert, fp16, a GPU) by timers on a GPU");
    EXPECT_FALSE(run.final_loss);
  }
  const RunRecord& full = result.runs.back();
  EXPECT_EQ(full.comm, "nccl");
  EXPECT_EQ(full.model, "bert");
  EXPECT_EQ(full.parameters, 407);
  EXPECT_NE(full.checks.find("100 % of 407 elements"), std::string::npos) << full.checks;
  EXPECT_NE(note_with(result, "a step is one graph of "), "");
  EXPECT_NE(note_with(result, "has never run on one"), "");
  test::expect_contains(world_text(options, full), "one GPU per rank");

  for (int gpu = 0; gpu < 2; ++gpu) {
    const auto& waited = waits.at(static_cast<std::size_t>(gpu));
    ASSERT_GT(waited.size(), 0U);
    ASSERT_EQ(waited.size() % 5, 0U);
    for (std::size_t step = 0; step < waited.size() / 5; ++step) {
      const double factor = profile_.factors[(models::first_factor(gpu, 4) + step) % 4];
      const std::vector<std::chrono::nanoseconds> expected{std::chrono::round<std::chrono::nanoseconds>(factor * 1ms),
                                                           std::chrono::round<std::chrono::nanoseconds>(factor * 2ms),
                                                           std::chrono::round<std::chrono::nanoseconds>(factor * 3ms),
                                                           std::chrono::round<std::chrono::nanoseconds>(factor * 3ms),
                                                           500us};
      const auto begin = waited.begin() + static_cast<std::ptrdiff_t>(5 * step);
      ASSERT_EQ(std::vector(begin, begin + 5), expected) << "GPU " << gpu << ", step " << step;
    }
  }
}

TEST_F(GpuReplay, ARecordingOfGraphsCarriesACautionUnderNegotiated) {
  constexpr const char* kCaution = "was recorded from CUDA graphs, which hand over all gradients at once";
  const auto caution = [&](Schedule schedule) {
    FakeGpus gpus(2);
    Options options = replay_options(2);
    options.engine.schedule = schedule;
    return note_with(good_run(options, gpus), kCaution);
  };
  EXPECT_EQ(caution(Schedule::kNegotiated), "");
  for (models::ReplayProfile::Gradient& gradient : profile_.gradients) gradient.submit_seconds = 0;
  EXPECT_NE(caution(Schedule::kNegotiated), "");
  EXPECT_EQ(caution(Schedule::kStatic), "") << "its buckets do not depend on when gradients are handed over";
}

TEST_F(GpuReplay, StepsThatAreEnqueuedAndSumsInFp16) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kNegotiated}) {
    FakeGpus gpus(2);
    Options options = replay_options(2);
    options.gpu.schedule.graph = false;
    options.engine.schedule = schedule;
    options.allreduce = DataType::kF16;
    const SessionResult result = good_run(options, gpus);
    EXPECT_EQ(fact(result.runs.at(0), "gpu.option.graph"), "no");
    EXPECT_EQ(result.runs.at(0).gradient_bytes, 2 * 407);
    EXPECT_NE(result.runs.at(0).checks.find("100 % of 407 elements"), std::string::npos) << result.runs.at(0).checks;
    const auto& launch = result.runs.at(0).ranks.at(0).samples.launch;
    EXPECT_GE(*std::min_element(launch.begin(), launch.end()), 0.5 * 300e-6) << "as recorded, times the step's factor";
    EXPECT_GE(*std::max_element(launch.begin(), launch.end()), 2 * 300e-6);
  }
}

TEST_F(GpuReplay, StaysOnTheHostUnlessAskedForAndSaysWhatIsMissing) {
  FakeGpus gpus(2);
  Options options = replay_options(2);
  options.device = Device::kAuto;
  const RunRecord run = good_run(options, gpus).runs.at(0);
  EXPECT_FALSE(on_gpus(run));
  EXPECT_EQ(run.comm, "loopback");

  FakeGpus none(0);
  options = replay_options(1);
  for (GpuBackend* const backend : {static_cast<GpuBackend*>(&none), static_cast<GpuBackend*>(nullptr)}) {
    const std::string why = gpu_absence(backend);
    test::expect_error(Errc::kUnsupported, {"--device cuda: " + why, "(or replay on the CPU: --device cpu)"},
                       [&] { settle(options, backend); });
  }
  profile_.update_seconds = 2;
  FakeGpus one(1);
  test::expect_contains(run_gpus(replay_options(1), one).error,
                        "unsupported: replay of bert on a GPU: the update takes 2 s");
}

TEST_F(GpuReplay, AScheduleThatWasChosenForAReplayIsForThatReplay) {
  FakeGpus gpus(2);
  Options options = replay_options(2);
  options.tuning.on = true;
  options.gpu.tuning_folder = folder_ / "schedules";
  EXPECT_NE(note_with(good_run(options, gpus), "schedule"), "");
  const fs::directory_iterator kept(folder_ / "schedules");
  ASSERT_NE(kept, fs::directory_iterator());
  std::ostringstream text;
  text << std::ifstream(kept->path()).rdbuf();
  test::expect_contains(text.str(), "\nreplay=");
}

// A rank that replays on the host differs in its device, although both store the device "replay".
TEST_F(GpuReplay, RanksCompareTheirDevices) {
  FakeGpus gpus(1);
  const Options options = replay_options(1);
  EXPECT_EQ(settings_of(options, settle(options, &gpus)).at(2),
            (std::pair<std::string, std::string>("--device", "cuda")));
}

}  // namespace
}  // namespace hvd::bench::gpu_replay_test
