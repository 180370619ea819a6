// Tests the stand-in for NCCL with two ranks on one GPU: its sums on a fake GPU, and the two processes that it runs in.
#include "tests/comm/shared_gpu.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/base/threads.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/comm/two_processes.h"

namespace hvd::test::shared_gpu_test {
namespace {

using namespace std::chrono_literals;

class SharedGpuSums : public ::testing::TestWithParam<std::tuple<DataType, ReduceOp>> {};

TEST_P(SharedGpuSums, AreThoseOfBothRanks) {
  const auto [type, op] = GetParam();
  const std::size_t element = size_of(type);
  for (const std::size_t count : {std::size_t{1}, std::size_t{301}}) {
    FakeWorld world(count);
    {
      FakeRuntime gpu(world, 0);  // both ranks use this GPU
      auto hosts = comm::make_loopback(2);
      on_threads(2, [&, type = type, op = op](std::size_t r) {
        const int rank = static_cast<int>(r);
        const auto peers = make_same_process_memory();
        SharedGpu shared({.rank = rank, .size = 2}, gpu, *peers, exchange_over(*hosts[r]));
        const gpu::DeviceMemory memory = gpu.allocate(count * element, "gradients");
        for (int repeat = 0; repeat < 3; ++repeat) {
          for (std::size_t i = 0; i < count; ++i) {
            store_element(&memory->bytes[i * element], exact_value(rank, i), type);
          }
          shared.all_reduce(memory->bytes, type, op, Deadline::after(20s));
          expect_reduced(memory->bytes, 2, type, op);
        }
      });
    }
    EXPECT_EQ(world.violations(), std::vector<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, SharedGpuSums,
                         ::testing::Combine(::testing::Values(DataType::kF32, DataType::kF16, DataType::kBF16),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kAverage)));

// -- processes -------------------------------------------------------------------------------------------------

comm::Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(TwoProcesses, ExchangeMessagesInRankOrder) {
  const auto outcomes = run_two_processes(
      [](int rank, const Exchange& exchange) {
        std::string text;
        for (const comm::Bytes& message : exchange(bytes_of(rank == 0 ? "ab" : "cd"), Deadline::after(10s))) {
          text.append(reinterpret_cast<const char*>(message.data()), message.size());
        }
        static_cast<void>(exchange({}, Deadline::after(10s)));
        return text + (rank == 0 ? " 0" : " 1");
      },
      20s);
  EXPECT_EQ(outcomes[0], "abcd 0");
  EXPECT_EQ(outcomes[1], "abcd 1");
}

}  // namespace
}  // namespace hvd::test::shared_gpu_test
