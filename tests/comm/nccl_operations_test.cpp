// Tests reduce-scatter, all-gather, all-to-all and all-reduce on device memory: their results, their calls of NCCL, and
// their capture in a graph.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/comm/device_checks.h"
#include "tests/comm/gpu_ranks.h"

namespace hvd::test::nccl_operations_test {
namespace {

using namespace device;

class NcclOperations : public ::testing::TestWithParam<std::tuple<int, DataType>> {};

TEST_P(NcclOperations, AreRightAndInStreamOrder) {
  const auto [size, type] = GetParam();
  on_connected_ranks(size, {.seed = static_cast<std::uint64_t>(size) * kDataTypes + static_cast<std::uint64_t>(type)},
                     [type = type](GpuRank&, auto& communicator) { check_all(communicator, type); });
}

INSTANTIATE_TEST_SUITE_P(All, NcclOperations,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5), ::testing::ValuesIn(kAllTypes)));

TEST(NcclOperations, AreTheseCallsAndOneThreadEach) {
  const GpuOutcome outcome = on_connected_ranks(3, {}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    Bench bench(communicator, DataType::kF32);
    const World world{rank.rank, 3};
    communicator.control().barrier(soon());
    const int before = rank.hub.threads_started();
    communicator.control().barrier(soon());
    all_reduce(bench, world, 300, ReduceOp::kAverage, true);
    all_reduce(bench, world, 200, ReduceOp::kSum, false);
    reduce_scatter(bench, world, equal(3, 5), ReduceOp::kSum, false);
    reduce_scatter(bench, world, ragged(3), ReduceOp::kSum, false);
    all_gather(bench, world, equal(3, 6), false);
    all_gather(bench, world, ragged(3), false);
    all_to_all(bench, world, [](int from, int to) { return from == 1 && to == 2 ? 0 : 3; });
    bench.check();
    const gpu::DeviceMemory memory = rank.gpu.allocate(7, "a broadcast");
    communicator.device().broadcast(memory->bytes.data(), 7, 1, soon());
    communicator.control().barrier(soon());
    EXPECT_EQ(rank.hub.threads_started() - before, 3 * 8);
  });
  for (int rank = 0; rank < 3; ++rank) {
    const std::string messages = rank == 1   ? "2 sends and 3 receives"
                                 : rank == 2 ? "3 sends and 2 receives"
                                             : "3 sends and 3 receives";
    EXPECT_EQ(begun(outcome, rank),
              (std::vector<std::string>{"all_reduce of 1030", "all_reduce of 300, a mean", "all_reduce of 200",
                                        "reduce_scatter of 5", "reduce of 1", "reduce of 4", "all_gather of 6",
                                        "broadcast of 1", "broadcast of 4", messages, "broadcast of 7"}));
  }
}

TEST(NcclOperations, GoIntoAGraph) {
  for (const int size : {2, 3, 5}) {
    on_connected_ranks(size, {.seed = static_cast<std::uint64_t>(size)},
                       [](GpuRank&, auto& communicator) { check_graph(communicator); });
  }
}

}  // namespace
}  // namespace hvd::test::nccl_operations_test
