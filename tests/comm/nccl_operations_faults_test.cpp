// Tests which operations on device memory are refused, and how each operation ends if a rank stays away or is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "tests/base/errors.h"
#include "tests/comm/device_checks.h"
#include "tests/comm/gpu_ranks.h"

namespace hvd::test::nccl_operations_faults_test {
namespace {

using namespace device;
using namespace std::chrono_literals;

// -- what is refused -----------------------------------------------------------------------------------------

TEST(NcclOperations, RefuseWrongCountsAndStayUsable) {
  for (const int size : {1, 3}) {
    on_connected_ranks(size, {}, [size](GpuRank& rank, comm::DeviceCommunicator& communicator) {
      comm::DevicePlane& plane = communicator.device();
      const auto memory = plane.allocate(1000, soon());
      std::byte *const in = memory->bytes().data(), *const out = in + 500;
      const Counts good = equal(size, 2), more = equal(size + 1, 2);
      const std::string ranks = std::to_string(size + 1) + " counts for " + std::to_string(size) + " ranks; ";
      EXPECT_EQ(error_of([&] { plane.reduce_scatter(out, in, more, DataType::kF32, ReduceOp::kSum, soon()); }),
                "invalid_argument: reduce_scatter: " + ranks + "give one count per rank");
      EXPECT_EQ(error_of([&] { plane.all_gather(out, in, more, DataType::kF32, soon()); }),
                "invalid_argument: all_gather: " + ranks + "give one count per rank");
      EXPECT_EQ(error_of([&] { plane.all_to_all(out, more, in, good, DataType::kF32, soon()); }),
                "invalid_argument: all_to_all: " + ranks + "give one count per rank");
      EXPECT_EQ(error_of([&] { plane.all_to_all(out, good, in, more, DataType::kF32, soon()); }),
                "invalid_argument: all_to_all: " + ranks + "give one count per rank");
      EXPECT_EQ(error_of([&] { plane.all_to_all(out, equal(size, 3), in, good, DataType::kF32, soon()); }),
                "invalid_argument: rank " + std::to_string(rank.rank) + " (host " +
                    communicator.topology().hosts.front() + ", GPU " + std::to_string(rank.rank) +
                    " (fake)): all_to_all: this rank sends itself 2 elements, but expects 3");
      Counts huge = equal(size, 2);
      huge.front() = ~std::size_t{0};
      if (size > 1) {
        EXPECT_EQ(error_of([&] { plane.all_gather(out, in, huge, DataType::kF32, soon()); }),
                  "invalid_argument: the counts of a collective add up beyond 2^64");
      }
      Bench bench(communicator, DataType::kF32);
      reduce_scatter(bench, {rank.rank, size}, ragged(size), ReduceOp::kSum, false);
      bench.check();
    });
  }
}

TEST(NcclOperations, ReduceNoInt16ButMoveIt) {
  const GpuOutcome outcome = on_connected_ranks(2, {}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    comm::DevicePlane& plane = communicator.device();
    const auto memory = plane.allocate(1000, soon());
    std::byte *const in = memory->bytes().data(), *const out = in + 500;
    const std::string expected =
        "unsupported: NCCL cannot reduce int16, because NCCL has no such type; reduce int32, or host memory";
    const auto refused = [&](const std::function<void()>& call) { EXPECT_EQ(error_of(call), expected); };
    refused([&] { plane.all_reduce(in, 5, DataType::kI16, ReduceOp::kSum, soon()); });
    refused([&] { plane.all_reduce_into(out, in, 5, DataType::kI16, ReduceOp::kMax, soon()); });
    refused([&] { plane.reduce_scatter(out, in, equal(2, 5), DataType::kI16, ReduceOp::kSum, soon()); });
    refused([&] { plane.reduce_scatter(out, in, ragged(2), DataType::kI16, ReduceOp::kProduct, soon()); });
    Bench bench(communicator, DataType::kI16);
    all_gather(bench, {rank.rank, 2}, ragged(2), false);
    bench.check();
  });
  EXPECT_EQ(begun(outcome, 0), (std::vector<std::string>{"all_reduce of 1030", "broadcast of 1", "broadcast of 4"}));
}

// -- faults --------------------------------------------------------------------------------------------------

constexpr const char* kOperations[] = {"all_reduce", "all_reduce_into",    "reduce_scatter", "reduce_scatter, ragged",
                                       "all_gather", "all_gather, ragged", "all_to_all"};

void enqueue(const std::string& which, comm::DevicePlane& plane, std::span<std::byte> memory, int size) {
  std::byte *const in = memory.data(), *const out = in + memory.size() / 2;
  const Counts counts = which.ends_with("ragged") ? ragged(size) : equal(size, 5);
  if (which == "all_reduce") return plane.all_reduce(in, 9, DataType::kF32, ReduceOp::kSum, soon());
  if (which == "all_reduce_into") return plane.all_reduce_into(out, in, 9, DataType::kF32, ReduceOp::kSum, soon());
  if (which == "all_to_all") return plane.all_to_all(out, counts, in, counts, DataType::kF32, soon());
  if (which.starts_with("all_gather")) return plane.all_gather(out, in, counts, DataType::kF32, soon());
  plane.reduce_scatter(out, in, counts, DataType::kF32, ReduceOp::kSum, soon());
}

class NcclFault : public ::testing::TestWithParam<const char*> {};

TEST_P(NcclFault, ARankThatStaysAwayIsWaitedForUntilTheDeadlineAndAbortEndsTheWork) {
  on_connected_ranks(3, {}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    comm::DevicePlane& plane = communicator.device();
    const auto memory = plane.allocate(1000, soon());
    communicator.control().barrier(soon());
    if (rank.rank < 2) {
      enqueue(GetParam(), plane, memory->bytes(), 3);
      const std::string error = error_of([&] { plane.complete("step 3", Deadline::after(200ms)); });
      EXPECT_TRUE(error.starts_with("timeout: ")) << error;
      expect_contains(error, "rank " + std::to_string(rank.rank) + " (host node0, GPU " + std::to_string(rank.rank) +
                                 " (fake)): step 3");
    }
    communicator.control().barrier(soon());
    plane.abort();
    rank.gpu.synchronize(plane.stream(), Deadline::after(5s), "what was aborted");
    EXPECT_EQ(error_of([&] { enqueue(GetParam(), plane, memory->bytes(), 3); }).find("interrupted: rank "), 0U);
  });
}

TEST_P(NcclFault, ALostPeerEndsTheWaitAndAbortEndsTheWork) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const GpuOutcome outcome =
        on_connected_ranks(3, {.seed = seed}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
          comm::DevicePlane& plane = communicator.device();
          const auto memory = plane.allocate(1000, soon());
          communicator.control().barrier(soon());
          const auto operate = [&] {
            enqueue(GetParam(), plane, memory->bytes(), 3);
            plane.complete("step 3", soon());
          };
          if (rank.rank == 2) {
            rank.hub.lose_a_rank();
          } else {
            expect_error(Errc::kPeerLost, "remote process exited", operate);
          }
          plane.abort();
          rank.gpu.synchronize(plane.stream(), Deadline::after(5s), "what was aborted");
          EXPECT_THROW(plane.check(), Error);
          EXPECT_THROW(operate(), Error);
        });
    for (const char* const abort : {"abort 0", "abort 1", "abort 2"}) {
      EXPECT_EQ(logged(outcome, abort), 1) << outcome.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NcclFault, ::testing::ValuesIn(kOperations));

TEST(NcclOperations, AMessageThatNobodyReceivesHoldsUpItsSenderUntilTheDeadline) {
  on_connected_ranks(2, {}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    comm::DevicePlane& plane = communicator.device();
    const auto memory = plane.allocate(1000, soon());
    std::byte *const in = memory->bytes().data(), *const out = in + 500;
    const Counts one{1, 1}, nothing = rank.rank == 0 ? Counts{1, 0} : Counts{0, 1};
    // Rank 0 sends rank 1 an element, but rank 1 expects none.
    const std::string error = error_of([&] {
      plane.all_to_all(out, nothing, in, rank.rank == 0 ? one : nothing, DataType::kF32, soon());
      plane.complete("the exchange", Deadline::after(200ms));
    });
    EXPECT_EQ(error.starts_with("timeout: "), rank.rank == 0) << error;
    communicator.control().barrier(soon());
    plane.abort();
    rank.gpu.synchronize(plane.stream(), Deadline::after(5s), "what was aborted");
  });
}

// The fake must block where NCCL would block. Otherwise the tests above would pass for sends without a group.
TEST(FakeNccl, MessagesThatAreNotGroupedGoOneByOne) {
  for (const bool grouped : {false, true}) {
    const GpuOutcome outcome = on_gpu_ranks(2, {}, [grouped](GpuRank& rank) {
      comm::nccl::UniqueId id{};
      if (rank.rank == 0) static_cast<void>(rank.nccl->unique_id(id));
      const comm::Bytes told = rank.host->control().broadcast(id, 0, soon());
      std::copy(told.begin(), told.end(), id.begin());
      comm::nccl::Comm comm;
      rank.gpu.make_current();
      static_cast<void>(rank.nccl->init_rank(comm, id, {.rank = rank.rank, .size = 2}));
      const auto settle = [&] {
        while (rank.nccl->state(comm).status == comm::nccl::Status::kInProgress) std::this_thread::sleep_for(1ms);
      };
      settle();
      const gpu::Stream stream = rank.gpu.make_stream(gpu::Priority::kNormal);
      const gpu::DeviceMemory memory = rank.gpu.allocate(8, "messages");
      std::byte* const data = memory->bytes.data();
      std::memset(data, 7 + rank.rank, 8);
      if (grouped) static_cast<void>(rank.nccl->begin_group());
      static_cast<void>(
          rank.nccl->send(comm, {.in = data, .count = 4, .dtype = DataType::kU8, .peer = 1 - rank.rank}, stream));
      if (!grouped) settle();
      static_cast<void>(rank.nccl->receive(
          comm, {.out = data + 4, .count = 4, .dtype = DataType::kU8, .peer = 1 - rank.rank}, stream));
      if (grouped) static_cast<void>(rank.nccl->end_group());
      settle();
      const std::string error =
          error_of([&] { rank.gpu.synchronize(stream, Deadline::after(grouped ? 20s : 200ms), "both messages"); });
      EXPECT_EQ(error.starts_with("timeout: "), !grouped) << error;
      if (grouped) {
        EXPECT_EQ(data[4], std::byte(8 - rank.rank));
      }
      rank.host->control().barrier(soon());
      static_cast<void>(rank.nccl->comm_abort(comm));
      rank.gpu.drain(stream);
    });
    EXPECT_TRUE(outcome.good()) << outcome.text();
  }
}

}  // namespace
}  // namespace hvd::test::nccl_operations_faults_test
