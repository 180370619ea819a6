// Tests tickets on fake GPUs: which objects outlive an engine, which operations a device refuses, and which resources
// are freed after a rank is lost or memory runs out.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/device_tickets.h"

namespace hvd::test::device_operations_faults_test {
namespace {

using Shape = std::vector<std::int64_t>;

TEST(DeviceTickets, OutputsOutliveTheEngineUnlessTheyWereNotTaken) {
  expect_good(on_gpu_ranks(2, {}, [](GpuRank& rank) {
    Output kept;
    {
      Tickets on(rank);
      const std::byte* const data = on.filled(3, DataType::kI64, [&](std::size_t) { return 7.0 + rank.rank; });
      const Ticket taken = on.engine().all_gather_async("taken", data, Shape{3}, DataType::kI64);
      const Ticket left = on.engine().all_gather_async("left", data, Shape{3}, DataType::kI64);
      kept = on.engine().take_output(taken);
      while (!on.engine().done(left)) std::this_thread::yield();
    }
    expect_output("kept", kept, 6, {DataType::kI64, [](std::size_t i) { return i < 3 ? 7.0 : 8.0; }});
    EXPECT_EQ(rank.gpu.objects(), 1U);
  }));
}

TEST(DeviceTickets, WhatADeviceCannotDoIsRefusedBeforeAnythingIsSent) {
  expect_good(on_gpu_ranks(2, {}, [&](GpuRank& rank) {
    Tickets on(rank);
    Engine& engine = on.engine();
    constexpr auto kF32 = DataType::kF32;
    std::byte* const data = on.filled(8, kF32, [](std::size_t) { return 1.0; });
    const Shape shape{8};
    const auto refused = [](const std::string& text, const std::function<void()>& call) {
      EXPECT_EQ(error_of(call), "unsupported: " + text);
    };
    refused(
        "reduce_scatter_async: tensor 'a': NCCL cannot reduce int16, because NCCL has no such type; reduce int32, or "
        "host memory",
        [&] { engine.reduce_scatter_async("a", data, shape, DataType::kI16, ReduceOp::kSum); });
    rank.gpu.no_scaling = "this build has no kernels";
    refused("all_reduce_async: tensor 'a': scale factors are not supported: this build has no kernels", [&] {
      engine.all_reduce_async("a", data, shape, kF32, ReduceOp::kSum, {2, 1});
    });
    engine.wait(engine.all_reduce_async("a", data, shape, kF32, ReduceOp::kSum));
    rank.gpu.no_scaling.clear();
    engine.wait(engine.all_reduce_async("a", data, shape, kF32, ReduceOp::kSum, {1.5, 2}));
    expect_values("data", {data, 8 * sizeof(float)}, 8, {kF32, [](std::size_t) { return 12.0; }});
  }));
}

TEST(DeviceTickets, ARankWithoutMemoryForAnOutputEndsAllWithItsWords) {
  const GpuOutcome outcome = on_gpu_ranks(2, {}, [](GpuRank& rank) {
    Tickets on(rank);
    const std::byte* const data = on.filled(1 << 20, DataType::kU8, [](std::size_t) { return 1.0; });
    std::vector<gpu::DeviceMemory> all;
    for (std::size_t bytes = std::size_t{32} << 20; rank.rank == 1 && bytes > 4096;) {
      if (rank.gpu.memory().free_bytes > bytes) {
        all.push_back(rank.gpu.allocate(bytes, "a hog"));
      } else {
        bytes /= 2;
      }
    }
    static_cast<void>(
        on.engine().take_output(on.engine().all_gather_async("rows", data, Shape{1 << 20}, DataType::kU8)));
  });
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
  const std::string why = "not enough memory for the output of all_gather of tensor 'rows': 2097152 bytes requested";
  EXPECT_TRUE(outcome.errors[1].starts_with("out_of_memory: ")) << outcome.text();
  EXPECT_NE(outcome.errors[1].find(why), std::string::npos) << outcome.text();
  EXPECT_TRUE(outcome.errors[0].starts_with("peer_lost: ")) << outcome.text();
  EXPECT_NE(outcome.errors[0].find(why), std::string::npos) << outcome.text();
}

/// When the ticket has failed, no work on the GPU may still use the scaled copy or the caller's memory.
TEST(DeviceTickets, NothingIsInFlightAfterARankIsLost) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    std::atomic<FakeNcclHub*> armed = nullptr;
    GpuWorldOptions options;
    options.seed = seed;
    options.nccl.resize(2);
    for (FakeNcclOptions& nccl : options.nccl) {
      nccl.polls_in_progress = 0;
      nccl.turns = [&](int) {  // called whenever an operation is enqueued
        if (FakeNcclHub* const hub = armed) hub->lose_a_rank();
        return 0;
      };
    }
    const GpuOutcome outcome = on_gpu_ranks(2, options, [&](GpuRank& rank) {
      Tickets on(rank);
      const std::byte* const data = on.filled(8, DataType::kF32, [](std::size_t) { return 1.0; });
      const auto reduce = [&] {
        return on.engine().take_output(
            on.engine().reduce_scatter_async("s", data, Shape{8}, DataType::kF32, ReduceOp::kSum, {2, 1}));
      };
      static_cast<void>(reduce());
      on.engine().barrier();
      armed = &rank.hub;
      on.engine().barrier();
      static_cast<void>(reduce());
    });
    EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
    for (const std::string& error : outcome.errors) EXPECT_TRUE(error.starts_with("peer_lost: ")) << outcome.text();
  }
}

}  // namespace
}  // namespace hvd::test::device_operations_faults_test
