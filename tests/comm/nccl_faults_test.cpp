// Tests that a NCCL data plane over fake GPUs ends its waits if a rank stays away, dies, gives up or is lost.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/nccl/trial.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/comm/gpu_ranks.h"

namespace hvd::test::nccl_faults_test {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(kNever); }

/// Waits until a peer has told this rank that it gives up. Returns the peer's reason, or "" if none comes.
std::string told_to(
    comm::ControlPlane& control, const std::function<void()>& meanwhile = [] {}) {
  for (const Deadline deadline = soon(); !deadline.passed(); std::this_thread::sleep_for(1ms)) {
    meanwhile();
    control.answer_roll_call("waiting elsewhere");
    if (const std::string reason = error_of([&] { return control.throw_if_aborted(), 0; }); !reason.empty()) {
      return reason;
    }
  }
  return {};
}

/// Takes part in start-up until the id is broadcast, but never joins NCCL's communicator.
void take_part_until_init(GpuRank& rank) {
  comm::nccl::check_gpus_and_versions(*rank.host, {"GPU-x", "GPU 1 (fake)", 1, "2.28.9"}, false, soon());
  (void)rank.host->control().broadcast({}, 0, soon());
}

TEST(NcclFaults, ARankThatNeverComesIsWaitedForUntilTheDeadline) {
  const auto begin = Clock::now();
  const GpuOutcome outcome = on_gpu_ranks(2, {.deadline = 300ms}, [&](GpuRank& rank) {
    if (rank.rank == 0) {
      (void)rank.connect();
      return;
    }
    take_part_until_init(rank);
    std::this_thread::sleep_for(700ms);
  });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  EXPECT_EQ(
      outcome.errors[0].find("timeout: rank 0 (host node0, GPU 0 (fake)): ncclCommInitRankConfig of 2 ranks did not "
                             "finish within 0."),
      0U)
      << outcome.text();
  EXPECT_NE(outcome.errors[0].find("or raise the deadline"), std::string::npos) << outcome.text();
  EXPECT_EQ(outcome.log, std::vector<std::string>{"abort 0"});
}

TEST(NcclFaults, ARankThatDiesWhileNcclStartsIsNoticedLongBeforeTheDeadline) {
  KillableWorld world(2);
  const auto begin = Clock::now();
  const GpuOutcome outcome = on_gpu_ranks(2, {.world = &world, .deadline = kNever}, [&](GpuRank& rank) {
    if (rank.rank == 0) {
      (void)rank.connect();
      return;
    }
    take_part_until_init(rank);
    world.kill(1);
  });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  expect_contains(outcome.errors[0], "peer_lost: rank 1 (host node0) is lost: its process ");
}

// A rank on another node notices nothing by itself: it waits for this rank, whose process runs.
TEST(NcclFaults, ALossThatNcclReportsWhileItStartsIsToldToTheOtherNodes) {
  const GpuOutcome outcome = on_gpu_ranks(2, {.ranks_per_node = 1, .deadline = kNever}, [&](GpuRank& rank) {
    if (rank.rank == 0) {
      (void)rank.connect();
      return;
    }
    take_part_until_init(rank);
    expect_contains(told_to(rank.host->control(), [&] { rank.hub.lose_a_rank(); }),
                    "rank 0 (host node0, GPU 0 (fake)): ncclCommInitRankConfig of 2 ranks: remote process exited");
  });
  expect_contains(outcome.errors[0], "; a peer is lost or gave up");
}

TEST(NcclFaults, ALossNoticedWhileGpusAreComparedIsToldToThePeers) {
  KillableWorld world(3);
  const GpuOutcome outcome = on_gpu_ranks(3, {.world = &world, .deadline = kNever}, [&](GpuRank& rank) {
    if (rank.rank == 0) (void)rank.connect();
    if (rank.rank == 1) world.kill(1);
    if (rank.rank == 2) expect_contains(told_to(rank.host->control()), "rank 1 (host node0) is lost");
  });
  expect_contains(outcome.errors[0], "peer_lost: rank 1 (host node0) is lost: its process ");
}

TEST(NcclFaults, AGpuThatFailsBetweenTheChecksAndNcclsStartIsToldToThePeers) {
  const GpuOutcome outcome = on_gpu_ranks(2, {.deadline = kNever}, [](GpuRank& rank) {
    if (rank.rank == 1) {
      take_part_until_init(rank);
      return;
    }
    rank.gpu.on_call = [](const FakeCall& call) {
      if (call.what.starts_with("make stream")) throw Error(Errc::kBackend, "GPU 0 has fallen off the bus");
    };
    (void)rank.connect();
  });
  EXPECT_EQ(outcome.errors[1], "peer_lost: GPU 0 has fallen off the bus") << outcome.text();
}

// Freeing memory waits for all work of the GPU, and NCCL's kernel waits for a peer that never comes.
TEST(NcclFaults, MemoryOfATrialThatNobodyCanEndIsLeft) {
  FakeNcclOptions stuck;
  stuck.abort_stops_kernels = false;
  stuck.abort_may_return = std::make_shared<std::atomic<bool>>(false);
  const GpuOutcome outcome =
      on_gpu_ranks(2, {.nccl = {stuck}, .ranks_per_node = 1, .deadline = 300ms}, [&](GpuRank& rank) {
        if (rank.rank == 0) {
          (void)rank.connect();
          return;
        }
        take_part_until_init(rank);
        comm::nccl::Comm comm;
        rank.gpu.make_current();
        (void)rank.nccl->init_rank(comm, {std::byte{1}}, {.rank = 1, .size = 2});
        (void)told_to(rank.host->control());
        (void)rank.nccl->comm_abort(comm);
      });
  expect_contains(outcome.errors[0], "timeout: GPU 0 (fake): rank 0 (host node0, GPU 0 (fake)): the trial reduction");
  for (const std::string& violation : outcome.violations) {
    EXPECT_EQ(violation.find("memory"), std::string::npos) << violation;
  }
}

// NCCL does not show the loss of a rank on the same host: the reduction just never ends.
TEST(NcclFaults, ARankThatDiesInAReductionIsNoticedLongBeforeTheDeadline) {
  KillableWorld world(2);
  const auto begin = Clock::now();
  const GpuOutcome outcome = on_gpu_ranks(2, {.world = &world}, [&](GpuRank& rank) {
    const auto communicator = rank.connect();
    comm::DevicePlane& plane = communicator->device();
    const auto memory = plane.allocate(64, soon());
    communicator->control().barrier(soon());
    if (rank.rank == 1) {
      world.kill(1);
      while (error_of([&] {
               communicator->control().throw_if_aborted();
               return 0;
             }).empty()) {
        std::this_thread::sleep_for(1ms);
      }
      return;
    }
    plane.all_reduce(memory->bytes().data(), 16, DataType::kF32, ReduceOp::kSum, soon());
    try {
      plane.complete("bucket 0", soon());
    } catch (const Error& error) {
      communicator->control().abort(error.what());  // as the engine does
      throw;
    }
  });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  expect_contains(outcome.errors[0], "peer_lost: rank 1 (host node0) is lost: its process ");
}

TEST(NcclFaults, APeersReasonIsHeardInsteadOfADeadline) {
  const FakeNcclOptions fast{.polls_in_progress = 0};  // only complete() waits
  for (const int ranks_per_node : {2, 1}) {
    GpuWorldOptions options;
    options.nccl = {fast, fast};
    options.ranks_per_node = ranks_per_node;
    const GpuOutcome outcome = on_gpu_ranks(2, options, [](GpuRank& rank) {
      const auto communicator = rank.connect();
      const auto memory = communicator->device().allocate(64, soon());
      communicator->control().barrier(soon());
      if (rank.rank == 1) {
        communicator->control().abort("rank 1 (host node0) gave up: the disk is full");
        return;
      }
      communicator->device().all_reduce(memory->bytes().data(), 16, DataType::kF32, ReduceOp::kSum, soon());
      communicator->device().complete("bucket 0", soon());
    });
    EXPECT_NE(outcome.errors[0].find("the disk is full"), std::string::npos) << outcome.text();
    // Rank 0 frees its memory while its reduction waits for ever. Aborting the communicator ends the reduction.
    EXPECT_GT(logged(outcome, "abort 0"), 0) << outcome.text();
  }
}

TEST(NcclFaults, AWatchdogDoesNotDisturbACallOfTheOwner) {
  GpuWorldOptions options;
  std::vector<comm::DevicePlane*> planes(2);  // [rank] set after start-up, because a watchdog needs a finished plane
  std::atomic<int> looks = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    options.nccl.push_back({.inside = [&, rank] {
      if (planes[rank] == nullptr) return;
      std::thread([&] { planes[rank]->check(); }).join();
      ++looks;
    }});
  }
  on_connected_ranks(2, options, [&](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    comm::DevicePlane*& plane = planes[static_cast<std::size_t>(rank.rank)];
    plane = &communicator.device();
    const auto memory = plane->allocate(64, soon());
    const auto reduce = [&] { plane->all_reduce(memory->bytes().data(), 16, DataType::kF32, ReduceOp::kSum, soon()); };
    reduce();
    plane->together(reduce, soon());
    plane->complete("the test's reductions", soon());
    plane = nullptr;
  });
  EXPECT_EQ(looks, 8);  // per rank: memory is registered, two reductions are called, and a group ends
}

// NCCL destroys a communicator only when all ranks have closed it.
TEST(NcclFaults, ARankThatDoesNotCloseTheCommunicatorIsNotWaitedForBlindly) {
  std::atomic<comm::ControlPlane*> control = nullptr;
  std::latch ended(1);
  FakeNcclOptions hangs;
  hangs.before_closing = [&] {
    if (comm::ControlPlane* const its = control) its->abort("rank 1 (host node0) gave up: the disk is full");
    ended.wait();
  };
  const GpuOutcome outcome = on_gpu_ranks(2, {.nccl = {{}, hangs}}, [&](GpuRank& rank) {
    const auto communicator = rank.connect();
    if (rank.rank == 1) control = &communicator->control();
    try {
      communicator->device().reconnect({.max_ctas = 4}, soon());
    } catch (const Error&) {
      if (rank.rank == 0) ended.count_down();
      throw;
    }
  });
  for (const std::string& error : outcome.errors) {
    EXPECT_EQ(error, "peer_lost: rank 1 (host node0) gave up: the disk is full");
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

}  // namespace
}  // namespace hvd::test::nccl_faults_test
