// Tests all-reduce in two levels over fake GPUs, a fake NCCL and loopback: the sums, their order, and the errors of all
// ranks when a rank is lost inside a node or between nodes.
#include "engine/comm/nccl/hierarchical.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <semaphore>
#include <string>
#include <vector>

#include "engine/comm/nccl/inter_node_reducer.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/comm/gpu_ranks.h"

namespace hvd::test::hierarchical_test {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(kNever); }

TEST(Pieces, AreSharesOfWholeLinesAndARest) {
  const auto text = [](std::size_t count, int local_size, bool even) {
    const comm::nccl::Pieces pieces = comm::nccl::divide_all_reduce(count, local_size, even);
    return std::to_string(pieces.share) + "+" + std::to_string(pieces.rest);
  };
  EXPECT_EQ(text(1000, 1, true), "960+40");
  EXPECT_EQ(text(1000, 4, true), "192+232");
  EXPECT_EQ(text(256, 4, true), "64+0");
  EXPECT_EQ(text(255, 4, true), "0+255");
  EXPECT_EQ(text(0, 4, true), "0+0");
  EXPECT_EQ(text(1000, 2, false), "0+1000");
}

struct World {
  int size, ranks_per_node;
};

/// Returns values whose sums depend on the order of summation.
float rough_value(int rank, std::size_t i) {
  return std::sin(static_cast<float>(17 * i + 1) * static_cast<float>(rank + 3));
}

GpuWorldOptions world_options(const World& world, std::uint64_t seed) {
  return {.seed = seed, .ranks_per_node = world.ranks_per_node};
}

class TwoLevels : public ::testing::TestWithParam<std::tuple<World, DataType, ReduceOp>> {};

TEST_P(TwoLevels, ReduceAnyCountInStreamOrder) {
  const auto [world, type, op] = GetParam();
  const std::vector<std::size_t> counts{1, 63, 300, 130, 1000};  // the host's buffer must grow several times
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto body = [&, world = world, type = type, op = op](GpuRank& rank, comm::DeviceCommunicator& communicator) {
      comm::DevicePlane& plane = communicator.device();
      const auto compute = rank.gpu.make_stream(gpu::Priority::kNormal);
      std::vector<std::unique_ptr<comm::RegisteredMemory>> all;
      std::vector<gpu::Event> ready;
      for (const std::size_t count : counts) {  // enqueues all reductions before the rank waits for the first
        const std::span<std::byte> memory = all.emplace_back(plane.allocate(count * size_of(type), soon()))->bytes();
        produce(rank, memory, type, compute);
        rank.gpu.record(ready.emplace_back(rank.gpu.make_event(gpu::Timing::kOff)), compute);
        rank.gpu.wait(plane.stream(), ready.back());
        plane.all_reduce(memory.data(), count, type, op, soon());
      }
      plane.complete("the test's reductions", soon());
      for (const auto& memory : all) expect_reduced(memory->bytes(), world.size, type, op);
    };
    const GpuOutcome outcome = on_connected_ranks(world.size, world_options(world, seed), body);
    EXPECT_EQ(logged(outcome, "abort"), 0) << outcome.text();
    EXPECT_EQ(logged(outcome, "finalize"), logged(outcome, "destroy"));
  }
}

// Means over three ranks are not exact, so worlds of three ranks run only sums.
INSTANTIATE_TEST_SUITE_P(Even, TwoLevels,
                         ::testing::Combine(::testing::Values(World{1, 1}, World{2, 2}, World{2, 1}, World{4, 4},
                                                              World{4, 2}, World{4, 1}),
                                            ::testing::Values(DataType::kF32, DataType::kF16, DataType::kBF16),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kAverage)));
INSTANTIATE_TEST_SUITE_P(Uneven, TwoLevels,
                         ::testing::Combine(::testing::Values(World{3, 2}, World{4, 3}),
                                            ::testing::Values(DataType::kF32, DataType::kF16, DataType::kBF16),
                                            ::testing::Values(ReduceOp::kSum)));

TEST(Hierarchical, MeansInFp16DoNotOverflow) {
  constexpr std::size_t kCount = 300;
  on_connected_ranks(4, world_options({4, 2}, 1), [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    comm::DevicePlane& plane = communicator.device();
    const auto memory = plane.allocate(kCount * size_of(DataType::kF16), soon());
    produce(rank.gpu, memory->bytes(), DataType::kF16, plane.stream(), [](std::size_t) { return 40000; });
    plane.all_reduce(memory->bytes().data(), kCount, DataType::kF16, ReduceOp::kAverage, soon());
    plane.complete("the test's reduction", soon());
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(load_element(&memory->bytes()[i * 2], DataType::kF16), 40000) << "element " << i;
    }
  });
}

TEST(Hierarchical, TheOrderOfSumsIsTheSameInEveryRunAndOnEveryRank) {
  constexpr std::size_t kCount = 20000;  // large enough to use both algorithms between nodes, doubling and ring
  for (const World world : {World{4, 2}, World{3, 2}, World{4, 1}}) {
    std::mutex mutex;
    std::vector<std::vector<std::byte>> results;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const auto body = [&](GpuRank& rank, comm::DeviceCommunicator& communicator) {
        comm::DevicePlane& plane = communicator.device();
        const auto memory = plane.allocate(kCount * sizeof(float), soon());
        produce(rank.gpu, memory->bytes(), DataType::kF32, plane.stream(),
                [&rank](std::size_t i) { return rough_value(rank.rank, i); });
        plane.all_reduce(memory->bytes().data(), kCount, DataType::kF32, ReduceOp::kSum, soon());
        plane.complete("the test's reduction", soon());
        const std::lock_guard lock(mutex);
        results.emplace_back(memory->bytes().begin(), memory->bytes().end());
      };
      on_connected_ranks(world.size, world_options(world, seed), body);
    }
    for (const auto& result : results) EXPECT_EQ(result, results.front()) << world.size << " ranks";
  }
}

TEST(Hierarchical, BroadcastDescriptionAndCapture) {
  on_connected_ranks(4, world_options({4, 2}, 1), [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    EXPECT_EQ(communicator.backend(), "hierarchical");
    comm::DevicePlane& plane = communicator.device();
    const auto memory = plane.allocate(5, soon());
    for (int root = 0; root < 4; ++root) {
      std::memset(memory->bytes().data(), 7 + rank.rank, 5);
      plane.broadcast(memory->bytes().data(), 5, root, soon());
      EXPECT_EQ(memory->bytes()[4], std::byte(7 + root));
    }
    EXPECT_EQ(plane.description(),
              "hierarchical(nccl 2.28.9, memory registered in the node; doubling over threads between nodes)");
    const auto values = plane.allocate(1000, soon());
    const auto reduce = [&] { plane.all_reduce(values->bytes().data(), 250, DataType::kF32, ReduceOp::kSum, soon()); };
    {
      gpu::Capture capture(rank.gpu, plane.stream());
      expect_error(Errc::kInvalidArgument, "a captured stream cannot wait for the host", reduce);
    }
    reduce();
    plane.complete("after a capture that was refused", soon());
  });
}

TEST(Hierarchical, OneNodeIsNcclAlone) {
  on_connected_ranks(2, world_options({2, 2}, 1), [](GpuRank&, comm::DeviceCommunicator& communicator) {
    EXPECT_EQ(communicator.backend(), "nccl");
    EXPECT_EQ(communicator.device().capture_refusal(), "");
  });
}

TEST(Hierarchical, SeveralNodesNeedMpi) {
  auto world = comm::make_loopback(2, {}, 1);
  EXPECT_EQ(comm::split_levels(comm::make_solo()).node, nullptr);
  EXPECT_EQ(error_of([&] { return comm::split_levels(std::move(world[0])); }),
            "unsupported: a reduction in two levels takes its messages between nodes from MPI, not from loopback: "
            "launch with mpirun or srun");
}

// -- faults --------------------------------------------------------------------------------------------------

TEST(Hierarchical, AWrongSumIsFoundBeforeTraining) {
  const FakeNcclOptions wrong{.wrong_sums = 1};
  GpuWorldOptions options = world_options({4, 2}, 1);
  options.nccl = {wrong, wrong, {}, {}};
  const GpuOutcome outcome = on_gpu_ranks(4, options, [](GpuRank& rank) { (void)rank.connect(); });
  EXPECT_NE(outcome.text().find("check_failed: rank"), std::string::npos) << outcome.text();
  for (const std::string& error : outcome.errors) {
    EXPECT_NE(error.find("NCCL summed element 0 of a trial to"), std::string::npos) << outcome.text();
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

/// A communicator for a node's leader. Reductions between nodes last until release(), even after an abort.
class SlowReductions final : public comm::Communicator, private comm::DataPlane {
 public:
  [[nodiscard]] const comm::Topology& topology() const override { return solo_->topology(); }
  [[nodiscard]] comm::ControlPlane& control() override { return solo_->control(); }
  [[nodiscard]] comm::DataPlane& data() override { return *this; }
  [[nodiscard]] std::string_view backend() const override { return solo_->backend(); }
  [[nodiscard]] std::string library() const override { return solo_->library(); }

  void await_begin() { begun_.acquire(); }
  void release() { released_.release(); }

 private:
  std::unique_ptr<comm::RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override {
    return solo_->data().allocate(bytes, deadline);
  }
  void all_reduce(void*, std::size_t, DataType, ReduceOp, Deadline) override {
    begun_.release();
    released_.acquire();
    throw Error(Errc::kPeerLost, "rank 1 has gone");
  }
  void reduce_scatter(void*, const void*, comm::Counts, DataType, ReduceOp, Deadline) override {}
  void all_gather(void*, const void*, comm::Counts, DataType, Deadline) override {}
  void all_to_all(void*, comm::Counts, const void*, comm::Counts, DataType, Deadline) override {}
  void broadcast(void*, std::size_t, int, Deadline) override {}
  [[nodiscard]] std::string description() const override { return "slow"; }

  std::unique_ptr<comm::Communicator> solo_ = comm::make_solo();
  std::binary_semaphore begun_{0}, released_{0};
};

TEST(InterNodeReducer, OpensTheGateOfAJobOnlyWhenItsReductionHasEnded) {
  SlowReductions between;
  comm::nccl::InterNodeReducer reducer(between);
  const auto inside = std::make_shared<gpu::HostGate>(), queued = std::make_shared<gpu::HostGate>();
  inside->reach();
  const comm::nccl::InterNodeReducer::Job job{.deadline = soon()};
  reducer.submit(job, inside);
  reducer.submit(job, queued);
  between.await_begin();
  reducer.abort("step 3: lost");
  EXPECT_TRUE(queued->is_open());
  EXPECT_FALSE(inside->is_open());  // an open gate would let the GPU overwrite memory that is being reduced
  between.release();
  inside->await_open();
}

TEST(Hierarchical, ALostRankInsideANodeEndsAll) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto begin = Clock::now();
    const GpuOutcome outcome = on_gpu_ranks(4, world_options({4, 2}, seed), [](GpuRank& rank) {
      const auto communicator = rank.connect();
      comm::DevicePlane& plane = communicator->device();
      const auto memory = plane.allocate(4000, soon());
      communicator->control().barrier(soon());
      if (rank.rank == 3) {
        rank.hub.lose_a_rank();
        plane.abort();
        throw Error(Errc::kIo, "the disk is full");
      }
      // The rank finds the loss itself, or hears of the loss from the first rank that gives up.
      expect_error(Errc::kPeerLost, " (host node", [&] {
        plane.all_reduce(memory->bytes().data(), 1000, DataType::kF32, ReduceOp::kSum, soon());
        plane.complete("step 3", soon());
      });
      plane.abort();
      rank.gpu.synchronize(plane.stream(), Deadline::after(5s), "what was aborted");
      EXPECT_THROW(plane.check(), Error);
    });
    EXPECT_LT(Clock::now() - begin, kAtOnce);
    EXPECT_EQ(outcome.errors[3], "io: the disk is full");
    EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
  }
}

/// Runs a reduction to which rank 3 never comes. The outcome holds the errors of the other ranks.
GpuOutcome without_rank_3(const World& world, std::chrono::milliseconds deadline) {
  return on_gpu_ranks(world.size, world_options(world, 1), [&](GpuRank& rank) {
    const auto communicator = rank.connect();
    comm::DevicePlane& plane = communicator->device();
    const auto memory = plane.allocate(4000, soon());
    communicator->control().barrier(soon());
    if (rank.rank == 3) {
      std::this_thread::sleep_for(4 * deadline);
      return;
    }
    try {
      plane.all_reduce(memory->bytes().data(), 1000, DataType::kF32, ReduceOp::kSum, Deadline::after(deadline));
      plane.complete("step 3", Deadline::after(2 * deadline));
    } catch (const Error&) {
      plane.abort();  // work on the stream still uses the memory
      rank.gpu.synchronize(plane.stream(), Deadline::after(5s), "what was aborted");
      throw;
    }
  });
}

TEST(Hierarchical, ARankThatNeverComesBetweenNodesIsNamedAtTheDeadline) {
  const auto begin = Clock::now();
  const GpuOutcome outcome = without_rank_3({4, 1}, 500ms);
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  for (const std::size_t rank : {0U, 1U, 2U}) {
    const std::string& error = outcome.errors[rank];
    EXPECT_EQ(
        error.find("peer_lost: rank " + std::to_string(rank) + " (host node" + std::to_string(rank) + ", GPU " +
                   std::to_string(rank) + " (fake)): reduction between nodes (rank numbers here are node numbers): "),
        0U)
        << outcome.text();
    EXPECT_NE(error.find("for rank 3 (host node3), which did not arrive"), std::string::npos) << outcome.text();
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

TEST(Hierarchical, ARankThatNeverComesInsideANodeHoldsUpItsPeersUntilTheDeadline) {
  const auto begin = Clock::now();
  const GpuOutcome outcome = without_rank_3({4, 2}, 500ms);
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  // Rank 2 waits for rank 3 inside the node, ranks 0 and 1 wait between nodes. All three ranks may report the error of
  // the rank that gives up first.
  for (const std::size_t rank : {0U, 1U, 2U}) {
    const std::string& error = outcome.errors[rank];
    EXPECT_TRUE(error.find("the GPU of host node1 did not finish the reduction inside the node by the deadline") !=
                    std::string::npos ||
                error.find("for rank 1 (host node1), which did not arrive") != std::string::npos ||
                error.find(" gave up") != std::string::npos)
        << outcome.text();
    EXPECT_TRUE(error.starts_with("peer_lost: ") || error.starts_with("timeout: ")) << error;
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

/// Returns the error of the abort, or "" if the world has not been aborted.
std::string abort_error(comm::Communicator& communicator) {
  return error_of([&] { communicator.control().throw_if_aborted(); });
}

// Any rank may abort the world, on any node.
TEST(Hierarchical, AnAbortOfTheWorldReachesNodeAndAcross) {
  constexpr int kWhoTells = 3;
  const GpuOutcome outcome = on_gpu_ranks(4, world_options({4, 2}, 1), [&](GpuRank& rank) {
    comm::ControlPlane& world = rank.host->control();
    comm::nccl::HierarchicalPlane plane({.world = *rank.host, .node = *rank.node, .across = *rank.across}, rank.gpu,
                                        rank.nccl, {}, soon());
    try {
      world.barrier(soon());
      if (rank.rank == kWhoTells) world.abort("the disk is full");
      for (const Deadline patience = soon(); !patience.passed(); std::this_thread::sleep_for(1ms)) {
        world.answer_roll_call("waits for it");
        world.throw_if_aborted();
      }
      ADD_FAILURE() << "heard nothing";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the disk is full");
    }
    plane.abort();
    EXPECT_EQ(abort_error(*rank.node), "peer_lost: the disk is full");
    EXPECT_EQ(abort_error(*rank.across), "peer_lost: the disk is full");
  });
  EXPECT_TRUE(outcome.good()) << outcome.text();
}

// abort() must first receive the pending messages of other nodes, because a message may hold another rank's reason.
TEST(Hierarchical, ALeavingRankHasReadTheAbortOfOtherNodes) {
  const GpuOutcome outcome = on_gpu_ranks(2, world_options({2, 1}, 1), [&](GpuRank& rank) {
    comm::nccl::HierarchicalPlane plane({.world = *rank.host, .node = *rank.node, .across = *rank.across}, rank.gpu,
                                        rank.nccl, {}, soon());
    rank.host->control().barrier(soon());
    if (rank.rank == 1) {
      rank.across->control().barrier(soon());  // rank 0 has aborted by now
      plane.abort();
      EXPECT_EQ(abort_error(*rank.node), "peer_lost: the disk is full");
    } else {
      rank.host->control().abort("the disk is full");
      rank.across->control().barrier(soon());
    }
  });
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

TEST(Hierarchical, ARankThatFailsWhileConnectingEndsAllNodes) {
  const FakeNcclOptions broken{.fail_unique_id = true};
  GpuWorldOptions options = world_options({4, 2}, 1);
  options.nccl = {{}, {}, broken, {}};  // rank 2 is the first rank of the second node
  const auto begin = Clock::now();
  const GpuOutcome outcome = on_gpu_ranks(4, options, [](GpuRank& rank) { (void)rank.connect(); });
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  for (const std::string& error : outcome.errors) {
    EXPECT_NE(error.find("ncclGetUniqueId: unhandled system error"), std::string::npos) << outcome.text();
  }
}

}  // namespace
}  // namespace hvd::test::hierarchical_test
