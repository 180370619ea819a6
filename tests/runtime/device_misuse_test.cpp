// Tests mistakes of a DeviceEngine's caller, and operations that its plane does not support. Each error must name the
// mistake and leave the engine usable.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "engine/runtime/device_engine.h"
#include "tests/base/errors.h"
#include "tests/runtime/device_network.h"

namespace hvd::test::device_misuse_test {
namespace {

TEST(DeviceMisuse, AGradientMarkedBeforeItsWorkIsARace) {
  const GpuOutcome outcome = on_gpu_ranks(2, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {});
    Network network(rank, engine);
    network.premature_ = engine.engine().plan().buckets.front().last - 1;
    network.step();
  });
  EXPECT_FALSE(outcome.violations.empty());
  for (const std::string& violation : outcome.violations) EXPECT_EQ(violation.find("race: "), 0U) << violation;
}

TEST(DeviceMisuse, CallersMistakesAreNamed) {
  const std::string forgotten = "run_step: gradient 'layer5.weight' was never marked ready";
  std::atomic<int> named = 0;
  const GpuOutcome outcome = on_gpu_ranks(2, {}, [&](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {});
    const auto refused = [](const char* text, const auto& body) {
      EXPECT_EQ(error_of(body), std::string("invalid_argument: ") + text);
    };
    refused("run_step: call set_gradients() first", [&] { engine.run_step({}, {}); });
    Network network(rank, engine);
    refused("gradient_ready(0): no step is being enqueued", [&] { engine.gradient_ready(0); });
    refused("finish_step: no step has been run", [&] { engine.finish_step(); });
    network.before_gradient_ = [&](std::size_t i) {
      if (i != 3) return;
      refused("gradient_ready: 'layer2.weight' is already marked as ready", [&] { engine.gradient_ready(2); });
      refused("gradient_ready(99): there are 12 gradients", [&] { engine.gradient_ready(99); });
    };
    network.step();
    network.before_gradient_ = nullptr;
    network.forgotten_ = 5;
    const std::string error = error_of([&] { network.step(); });
    if (error == "invalid_argument: " + forgotten) ++named;
    EXPECT_TRUE(error.ends_with(forgotten)) << error;  // a rank may first hear of the error from the other rank
  });
  EXPECT_GE(named, 1);
  // Both ranks abandon the open step, so rank 0 aborts once.
  EXPECT_EQ(std::count(outcome.log.begin(), outcome.log.end(), "abort 0"), 1) << outcome.text();
}

/// The plane refuses unsupported operations before it sends anything, so the engine can go on.
TEST(DeviceMisuse, WhatThePlaneCannotDoLeavesTheEngineUsable) {
  expect_good(on_gpu_ranks(2, {}, [&](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {});
    Engine& plain = engine.engine();
    std::byte* const data = plain.allocate(4096).data();
    const auto refused = [](const char* part, const auto& body) { expect_error(Errc::kUnsupported, part, body); };
    const std::vector<std::int64_t> shape{8};
    const std::vector<GroupTensor> group{{data, shape}};
    refused("int16", [&] { plain.set_gradients({{"w", 0, 8}}, data, DataType::kI16, ReduceOp::kSum); });
    Network network(rank, engine);
    refused("int16", [&] { plain.all_reduce_async("a", data, shape, DataType::kI16, ReduceOp::kSum); });
    refused("int16", [&] { plain.grouped_all_reduce_async("a", group, DataType::kI16, ReduceOp::kSum); });
    refused("int16", [&] { plain.all_reduce(data, 8, DataType::kI16, ReduceOp::kSum); });
    plain.wait(plain.all_reduce_async("a", data, shape, DataType::kI32, ReduceOp::kSum));
    network.step();
  }));
}

TEST(DeviceMisuse, AWorkThatDoesNotJoinItsStreamsIsRefused) {
  const GpuOutcome outcome = on_gpu_ranks(1, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {.eager_steps = 0});
    Network network(rank, engine);
    network.unjoined_ = true;
    network.step();
  });
  EXPECT_NE(outcome.errors[0].find("without a join: nothing waits for 'stray'"), std::string::npos) << outcome.text();
}

}  // namespace
}  // namespace hvd::test::device_misuse_test
