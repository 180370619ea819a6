// Tests whole sessions on fake GPUs, with ranks that exchange texts about their engines.
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/session/session.h"
#include "bench/world/settings.h"
#include "engine/base/hash.h"
#include "tests/bench/session/gpu_sessions.h"

namespace hvd::bench::gpu_engines_test {
namespace {

using test::fact;
using test::FakeGpus;
using test::good_run;
using test::gpu_options;

TEST(GpuEngines, AllRanksRunTheEnginesThatTheFirstFoundToBeTheFastest) {
  Options options = gpu_options(3);
  options.gpu.tune = true;
  FakeGpus gpus(3);
  const SessionResult result = good_run(options, gpus);
  const RunRecord& run = result.runs[0];
  EXPECT_EQ(fact(run, "gpu.winners"), "engine 0");
  EXPECT_FALSE(run.provenance.at("gpu.winners").in_fingerprint);
  EXPECT_EQ(fact(run, "gpu.engines"), hex64(Hasher().text("engine 0").value())) << "one value: all ranks'";
  EXPECT_EQ(fact(run, "gpu.option.tune"), "yes");
}

TEST(GpuEngines, EachRankGetsTheTextsOfAllRanks) {
  FakeGpus gpus(3);
  const SessionResult result = good_run(gpu_options(3), gpus);
  for (int gpu = 0; gpu < 3; ++gpu) {
    const std::string report = "report of GPU " + std::to_string(gpu);
    EXPECT_EQ(std::count(result.notes.begin(), result.notes.end(), report), 1) << report;
  }
}

TEST(GpuEngines, DifferentEnginesAreSaid) {
  Options options = gpu_options(2);
  options.gpu.tune = true;
  FakeGpus gpus(2);
  gpus.faults.ignores_agreed_engines = true;
  const SessionResult result = good_run(options, gpus);
  const auto said = std::count_if(result.notes.begin(), result.notes.end(), [](const std::string& note) {
    return note.starts_with("caution: the ranks' GPUs differ in engines: ");
  });
  EXPECT_EQ(said, 1);
}

TEST(GpuEngines, AnErrorThatAllRanksKnowNamesRankAndHostOnce) {
  FakeGpus gpus(3);
  gpus.faults.last_rank_fails = "its plan differs";
  try {
    run_session(gpu_options(3), {}, {}, &gpus);
    ADD_FAILURE() << "no error was thrown";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.code(), Errc::kMismatch);
    EXPECT_TRUE(std::string(error.what()).starts_with("host ")) << error.what();
    EXPECT_TRUE(std::string(error.what()).ends_with(", rank 2: its plan differs")) << error.what();
  }
}

}  // namespace
}  // namespace hvd::bench::gpu_engines_test
