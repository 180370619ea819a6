// Runs steps on fake GPUs. All ranks must end when one rank is lost, hangs or gives up, or when its library or GPU
// fails. Every test also checks that the fakes report no fault, such as a race or a wrong order of destruction.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "engine/runtime/device_engine.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/runtime/device_network.h"

namespace hvd::test::device_faults_test {
namespace {

using namespace std::chrono_literals;

struct FaultWay {
  std::string name;
  bool graph = false;
  int ranks_per_node = 0;
  bool ahead = false;  ///< captures from the first step on, and keeps two steps in flight
};

class DeviceFaults : public ::testing::TestWithParam<FaultWay> {
 protected:
  /// Runs steps on three ranks. Before step 4 rank 1 calls `fault` and then `linger`. Either may throw, which ends rank
  /// 1. `deadline` is the deadline of the steps. Start-up has the default deadline.
  static GpuOutcome run(const std::function<void(GpuRank&)>& fault, Patience deadline,
                        const std::function<void(GpuRank&)>& linger = {}, KillableWorld* world = nullptr) {
    return on_gpu_ranks(3, {.ranks_per_node = GetParam().ranks_per_node, .world = world}, [&](GpuRank& rank) {
      DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic),
                          {.graph = GetParam().graph, .eager_steps = GetParam().ahead ? 0 : 2},
                          {.leave = {}, .library_patience = 500ms});
      Network network(rank, engine);
      engine.set_deadline(deadline);
      for (int step = 0; step < 100; ++step) {
        if (rank.rank == 1 && step == 4) {
          try {
            fault(rank);
          } catch (const Error& error) {
            engine.abandon(error.what());  // has an effect only while a step is in flight
            throw;
          }
          if (linger) linger(rank);
        }
        network.launch();
        if (!GetParam().ahead || !engine.may_run_ahead()) engine.finish_step();
      }
    });
  }
};

// NCCL shows the loss of a rank only over a network. On one host the other ranks' steps just never end.
TEST_P(DeviceFaults, ADeadPeerIsNoticedLongBeforeTheDeadline) {
  if (GetParam().ranks_per_node > 0) GTEST_SKIP() << "a KillableWorld has one node";
  KillableWorld world(3);
  const auto begin = Clock::now();
  const auto linger = [](GpuRank& rank) {
    for (GpuOutcome now; logged(now, "abort") == 0; now.log = rank.hub.log()) std::this_thread::sleep_for(1ms);
  };
  const GpuOutcome outcome = run([&](GpuRank&) { world.kill(1); }, kNever, linger, &world);
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  for (const std::size_t rank : {0U, 2U}) {
    expect_contains(outcome.errors[rank], "peer_lost: rank 1 (host node0) is lost: its process ");
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

// The rank whose library has failed ends by its own error, or by that of the library like its peers.
TEST_P(DeviceFaults, AFaultOfTheLibraryNamesRankAndStep) {
  for (const bool has_own_error : {true, false}) {
    const auto begin = Clock::now();
    const GpuOutcome outcome = run(
        [&](GpuRank& rank) {
          rank.hub.lose_a_rank();
          if (has_own_error) throw Error(Errc::kIo, "the disk is full");
        },
        kNever);
    EXPECT_LT(Clock::now() - begin, kAtOnce);  // no rank waited for its deadline
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const std::string& error = outcome.errors[rank];
      EXPECT_EQ(logged(outcome, "abort " + std::to_string(rank)), 1) << outcome.text();
      if (has_own_error && rank == 1) {
        EXPECT_EQ(error, "io: the disk is full");
        continue;
      }
      EXPECT_EQ(error.find("peer_lost: rank "), 0U) << outcome.text();
      EXPECT_EQ(error.find('\n'), std::string::npos);
      if (has_own_error) continue;  // the peers hear of the library's fault or of this rank's
      expect_contains(error, "communication failed: remote process exited or there was a network error");
      EXPECT_NE(error.find("step "), std::string::npos) << error;
    }
    EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
  }
}

TEST_P(DeviceFaults, APeerThatGivesUpIsHeardWithoutTheLibrary) {
  const GpuOutcome outcome = run([](GpuRank&) { throw Error(Errc::kIo, "the disk is full"); }, kNever);
  for (const std::size_t rank : {0U, 2U}) {
    const std::string why = GetParam().ahead ? "the disk is full" : "it ends because of its own error";
    EXPECT_NE(outcome.errors[rank].find("rank 1 (host node0) gave up: " + why), std::string::npos) << outcome.text();
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

TEST_P(DeviceFaults, AHangingPeerIsNamedAtTheDeadline) {
  const auto begin = Clock::now();
  const GpuOutcome outcome =
      run([](GpuRank&) {}, {1500ms, "--patience"}, [](GpuRank&) { std::this_thread::sleep_for(6s); });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(outcome.errors[rank].find("peer_lost: rank "), 0U) << outcome.text();
    expect_contains(outcome.errors[rank], "step 4 is in flight on the GPU, in or before bucket 0 (layer0.weight");
    EXPECT_NE(outcome.errors[rank].find("--patience"), std::string::npos) << outcome.text();
    const std::string idle = GetParam().ahead
                                 ? "step 3 has finished on its GPU, but the training thread has not continued"
                                 : "after step 3, nothing in flight on its GPU";
    expect_contains(outcome.errors[rank], "rank 1 (host node0) is furthest behind: " + idle);
  }
  EXPECT_NE(outcome.errors[1], "");
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

TEST_P(DeviceFaults, AFailedGpuEndsTheRunEverywhere) {
  const GpuOutcome outcome = run([](GpuRank& rank) { rank.gpu.break_down("an illegal memory access"); }, kNever);
  EXPECT_NE(outcome.errors[1].find("an illegal memory access"), std::string::npos) << outcome.text();
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_NE(outcome.errors[rank].find("an illegal memory access"), std::string::npos) << outcome.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceFaults,
                         ::testing::Values(FaultWay{"eager"}, FaultWay{"captured", true},
                                           FaultWay{"ahead", true, 0, true}, FaultWay{"twoNodes", true, 2}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace hvd::test::device_faults_test
