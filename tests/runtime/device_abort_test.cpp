// Tests that a rank can leave a step that has failed. An abort of NCCL returns only when no captured graph uses the
// communicator. The training thread owns the graphs, and may itself be stuck in a CUDA call.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/base/patience.h"
#include "tests/runtime/device_network.h"

namespace hvd::test::device_abort_test {
namespace {

using namespace std::chrono_literals;

constexpr DeviceOptions kCapturedFromTheStart{.eager_steps = 0};

TEST(NcclAbort, ReturnsAtOnceAndEndsWhenTheGraphIsGone) {
  const GpuOutcome outcome = on_gpu_ranks(2, {}, [](GpuRank& rank) {
    const auto communicator = rank.connect();
    comm::DevicePlane& plane = communicator->device();
    const gpu::DeviceMemory memory = rank.gpu.allocate(64, "a");
    gpu::Graph graph;
    {
      gpu::Capture capture(rank.gpu, plane.stream());
      plane.all_reduce(memory->bytes.data(), 16, DataType::kF32, ReduceOp::kSum, Deadline::after(kAtOnce));
      graph = capture.finish();
    }
    communicator->control().barrier(Deadline::after(kAtOnce));
    const auto begin = Clock::now();
    plane.abort();
    EXPECT_FALSE(plane.await_abort(Deadline::after(100ms)));
    EXPECT_GE(rank.hub.aborting(), 1);
    EXPECT_GE(comm::unfinished_aborts(), 1);
    // Other threads may call the plane during the abort, because the abort holds no lock.
    EXPECT_THROW(plane.check(), Error);
    EXPECT_THROW(plane.all_reduce(memory->bytes.data(), 16, DataType::kF32, ReduceOp::kSum, Deadline::after(kAtOnce)),
                 Error);
    graph.reset();
    EXPECT_TRUE(plane.await_abort(Deadline::after(kAtOnce)));
    EXPECT_LT(Clock::now() - begin, kAtOnce);
  });
  EXPECT_TRUE(outcome.good()) << outcome.text();
  EXPECT_EQ(comm::unfinished_aborts(), 0);
}

struct AbortOutcome {
  GpuOutcome outcome;
  std::vector<std::string> left;  // errors that StuckRank::leave was called with, on both ranks
};
/// Runs two ranks. Before step 4, while each rank has a graph in flight, rank 1 runs `fault` and rank 0 runs `prepare`.
AbortOutcome run(const std::vector<FakeNcclOptions>& nccl, StuckRank stuck,
                 const std::function<void(GpuRank&)>& prepare,
                 const std::function<void(GpuRank&, DeviceEngine&)>& fault,
                 const std::function<void(GpuRank&, DeviceEngine*)>& leave = {}) {
  AbortOutcome outcome;
  std::mutex mutex;
  outcome.outcome = on_gpu_ranks(2, {.nccl = nccl}, [&](GpuRank& rank) {
    DeviceEngine* its = nullptr;
    StuckRank own = stuck;
    own.leave = [&](const Error& why) {
      {
        const std::lock_guard lock(mutex);
        outcome.left.push_back("rank " + std::to_string(rank.rank) + ": " + why.what());
      }
      if (leave) leave(rank, its);
    };
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), kCapturedFromTheStart, own);
    its = &engine;
    Network network(rank, engine);
    for (int step = 0; step < 100; ++step) {
      if (step == 4) {
        if (rank.rank == 1) {
          fault(rank, engine);
        } else {
          prepare(rank);
        }
      }
      network.launch();
      if (!engine.may_run_ahead()) engine.finish_step();
    }
  });
  return outcome;
}

const auto kNothing = [](GpuRank&) {};
const std::vector<FakeNcclOptions> kProcesses(2), kThreadsOfOneProcess(2, {.one_process = true});

TEST(DeviceAbort, TheTrainingThreadThatGivesUpDropsItsGraphs) {
  const auto begin = Clock::now();
  const AbortOutcome outcome = run(kProcesses, {}, kNothing, [](GpuRank& rank, DeviceEngine& engine) {
    engine.abandon("the disk is full");  // the training thread itself aborts, and it owns the graphs
    EXPECT_EQ(engine.in_flight(), 0U);
    EXPECT_TRUE(engine.plane().await_abort(Deadline::after(0ms)));
    EXPECT_EQ(engine.graph_shape(), std::nullopt);
    throw Error(Errc::kIo, "the disk is full on rank " + std::to_string(rank.rank));
  });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  EXPECT_EQ(outcome.outcome.errors[1], "io: the disk is full on rank 1");
  EXPECT_NE(outcome.outcome.errors[0].find("gave up: the disk is full"), std::string::npos) << outcome.outcome.text();
  EXPECT_TRUE(outcome.left.empty()) << outcome.left.front();
  EXPECT_TRUE(outcome.outcome.violations.empty()) << outcome.outcome.text();
}

TEST(DeviceAbort, TheWatchdogsAbortEndsWhenTheTrainingThreadHasLeft) {
  for (const auto& ranks : {kProcesses, kThreadsOfOneProcess}) {
    const auto begin = Clock::now();
    const AbortOutcome outcome = run(ranks, {}, kNothing, [](GpuRank& rank, DeviceEngine&) { rank.hub.lose_a_rank(); });
    EXPECT_LT(Clock::now() - begin, kAtOnce);
    for (const std::string& error : outcome.outcome.errors) EXPECT_EQ(error.find("peer_lost: rank "), 0U) << error;
    EXPECT_TRUE(outcome.left.empty()) << outcome.left.front();
    EXPECT_TRUE(outcome.outcome.violations.empty()) << outcome.outcome.text();
    EXPECT_EQ(outcome.outcome.wait_timed_out, 0);
  }
}

// The abort of rank 0, the last one, waits for the graphs of both ranks. Rank 1 must drop its graphs although its own
// abort has returned before.
TEST(DeviceAbort, TheLastRankOfAProcessIsNotHeldUpByTheGraphsOfTheOthers) {
  const AbortOutcome outcome = run(kThreadsOfOneProcess, {}, kNothing, [](GpuRank&, DeviceEngine& engine) {
    engine.abandon("the disk is full");
    throw Error(Errc::kIo, "the disk is full");
  });
  EXPECT_TRUE(outcome.left.empty()) << outcome.left.front();
  EXPECT_TRUE(outcome.outcome.violations.empty()) << outcome.outcome.text();
  EXPECT_EQ(outcome.outcome.wait_timed_out, 0);
}

TEST(DeviceAbort, ATrainingThreadThatIsStuckInCudaIsLeftBehind) {
  std::promise<void> returns;
  const std::shared_future<void> returned = returns.get_future().share();
  std::atomic<bool> stuck = false;
  std::chrono::nanoseconds asked{0};
  const AbortOutcome outcome = run(
      {}, {.leave = {}, .patience = 300ms},
      [&](GpuRank& rank) {
        rank.gpu.on_launch = [&] {
          stuck = true;
          returned.wait();
        };
      },
      [&](GpuRank&, DeviceEngine& engine) {
        while (!stuck) std::this_thread::sleep_for(1ms);
        engine.abandon("the disk is full");
        throw Error(Errc::kIo, "the disk is full");
      },
      [&](GpuRank& rank, DeviceEngine* engine) {  // runs on the engine's thread
        EXPECT_GE(rank.hub.aborting(), 1);        // NCCL waits for the graphs of the training thread
        const auto begin = Clock::now();
        EXPECT_THROW(engine->plane().check(), Error);
        asked = Clock::now() - begin;
        returns.set_value();
      });
  EXPECT_LT(asked, kAtOnce);
  ASSERT_EQ(outcome.left.size(), 1U) << outcome.outcome.text();
  EXPECT_EQ(outcome.left[0].find("rank 0: rank "), 0U) << outcome.left[0];
  EXPECT_EQ(outcome.left[0].find('\n'), std::string::npos);
  EXPECT_TRUE(outcome.outcome.violations.empty()) << outcome.outcome.text();
}

// NCCL never returns here, but the training thread is not stuck. This thread leaves by itself, and samples are saved as
// after any other error.
TEST(DeviceAbort, ALibraryThatDoesNotComeBackHoldsNobodyUp) {
  const FakeNcclOptions stays{.abort_may_return = std::make_shared<std::atomic<bool>>(false)};
  const auto begin = Clock::now();
  const AbortOutcome outcome = run({stays}, {.leave = {}, .library_patience = 200ms}, kNothing,
                                   [](GpuRank& rank, DeviceEngine&) { rank.hub.lose_a_rank(); });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  EXPECT_TRUE(outcome.left.empty()) << outcome.left.front();
  EXPECT_EQ(outcome.outcome.wait_timed_out, 1);
  EXPECT_EQ(outcome.outcome.errors[0].find("peer_lost: "), 0U) << outcome.outcome.text();
}

// If the training thread is stuck freeing GPU memory, the engine must call StuckRank::leave, which ends a real process.
TEST(DeviceAbort, ATrainingThreadThatIsStuckBehindTheLibraryIsLeftBehind) {
  const FakeNcclOptions stays{.abort_may_return = std::make_shared<std::atomic<bool>>(false)};
  std::atomic<bool> told = false;
  const GpuOutcome outcome = on_gpu_ranks(2, {.nccl = {stays}}, [&](GpuRank& rank) {
    StuckRank stuck{.leave = [&](const Error&) { told = true; }, .patience = 500ms, .library_patience = 100ms};
    if (rank.rank == 1) stuck.leave = {};
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), kCapturedFromTheStart, stuck);
    Network network(rank, engine);
    try {
      for (int step = 0; step < 100; ++step) {
        if (step == 4 && rank.rank == 1) rank.hub.lose_a_rank();
        network.step();
      }
    } catch (const Error&) {
      for (const Deadline patience = Deadline::after(kAtOnce); rank.rank == 0 && !told && !patience.passed();) {
        std::this_thread::sleep_for(1ms);  // stands for a cudaFree that does not return
      }
      throw;
    }
  });
  EXPECT_TRUE(told) << outcome.text();
  EXPECT_EQ(outcome.wait_timed_out, 1);
}

}  // namespace
}  // namespace hvd::test::device_abort_test
