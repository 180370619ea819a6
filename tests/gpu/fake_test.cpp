// Tests the fake GPU. If a real GPU may run work in any order, the fake must run the harmful order for some seeds. If a
// real GPU must keep an order, the fake must keep it for every seed.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tests/base/errors.h"
#include "tests/gpu/fake_runtime.h"

namespace hvd::test::fake_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeeds = 40;

Deadline soon() { return Deadline::after(5s); }

int& as_int(const gpu::DeviceMemory& memory) { return *reinterpret_cast<int*>(memory->bytes.data()); }

/// A fake GPU with two streams and two blocks of memory, each with one number.
struct OneGpu {
  explicit OneGpu(std::uint64_t seed = 1, gpu::Priority priority = gpu::Priority::kNormal)
      : world(seed), gpu(world, 0), second(gpu.make_stream(priority)) {}
  void set(const gpu::DeviceMemory& memory, int value, gpu::StreamView stream) {
    gpu.kernel(stream, "set " + std::to_string(value), {}, {memory->bytes},
               [&memory, value] { as_int(memory) = value; });
  }
  void add(const gpu::DeviceMemory& from, const gpu::DeviceMemory& to, gpu::StreamView stream) {
    gpu.kernel(stream, "add", {from->bytes, to->bytes}, {to->bytes}, [&from, &to] { as_int(to) += as_int(from); });
  }
  void synchronize(gpu::StreamView stream) { gpu.synchronize(stream, soon(), "the work"); }
  FakeWorld world;
  FakeRuntime gpu;
  gpu::Stream first = gpu.make_stream(gpu::Priority::kNormal), second;
  gpu::DeviceMemory a = gpu.allocate(sizeof(int), "a"), b = gpu.allocate(sizeof(int), "b");
};

TEST(FakeGpu, StreamsWithoutAnEventRunInAnyOrderAndTheRaceIsFound) {
  std::set<int> results;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    OneGpu one(seed);
    one.set(one.a, 1, one.first);
    one.set(one.a, 2, one.second);
    one.synchronize(one.first);
    one.synchronize(one.second);
    results.insert(as_int(one.a));
    ASSERT_EQ(one.world.violations().size(), 1U) << "seed " << seed;
    EXPECT_EQ(one.world.violations().front(),
              "race: 'set 1' writes and 'set 2' writes the same memory, and neither waits for the other");
  }
  EXPECT_EQ(results, (std::set<int>{1, 2}));
}

TEST(FakeGpu, CopiesReadTheirSourceLate) {
  OneGpu one;
  const auto host = one.gpu.allocate_pinned(sizeof(int), "staging");
  const int before = 1, after = 2;
  std::memcpy(host->bytes.data(), &before, sizeof before);
  one.gpu.copy(one.a->bytes.data(), host->bytes.data(), sizeof(int), one.first);
  std::memcpy(host->bytes.data(), &after, sizeof after);  // the caller's mistake: the copy has not run yet
  one.synchronize(one.first);
  EXPECT_EQ(as_int(one.a), 2);
}

enum class Ending : std::uint8_t { kOpen, kJoined, kJoinedAndMore /**< more work after the join */ };

/// Captures a fork and work on both streams. Also captures the join, unless `ending` is kOpen.
gpu::Graph capture_fork(OneGpu& one, Ending ending) {
  const auto fork = one.gpu.make_event(gpu::Timing::kOff);
  const auto join = one.gpu.make_event(gpu::Timing::kOff);
  gpu::Capture capture(one.gpu, one.first);
  one.set(one.a, 5, one.first);
  one.gpu.record(fork, one.first);
  one.gpu.wait(one.second, fork);
  one.add(one.a, one.b, one.second);
  one.gpu.record(join, one.second);
  if (ending != Ending::kOpen) one.gpu.wait(one.first, join);
  if (ending == Ending::kJoinedAndMore) one.set(one.a, 2, one.first);
  return capture.finish();
}

TEST(FakeGpu, AGraphReplaysWhatWasCaptured) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    OneGpu one(seed, gpu::Priority::kHigh);
    one.set(one.b, 0, one.first);
    const gpu::Graph graph = capture_fork(one, Ending::kJoined);
    EXPECT_FALSE(one.gpu.capturing(one.first) || one.gpu.capturing(one.second));
    EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 2 nodes in a row: 2 kernels (1 of high priority)");
    one.synchronize(one.first);
    EXPECT_EQ(as_int(one.b), 0);  // the capture itself ran no work
    for (int i = 0; i < 3; ++i) one.gpu.launch(graph, one.first);
    one.synchronize(one.first);
    EXPECT_EQ(as_int(one.b), 15) << "seed " << seed;
    EXPECT_TRUE(one.world.violations().empty());
  }
}

TEST(FakeGpu, AMissingJoinIsRefused) {
  OneGpu one;
  expect_error(Errc::kInvalidArgument, "without a join: nothing waits for 'add'",
               [&] { return capture_fork(one, Ending::kOpen); });
  EXPECT_FALSE(one.gpu.capturing(one.second));
}

TEST(FakeGpu, ARaceInsideAGraphIsFound) {
  OneGpu one;
  const auto fork = one.gpu.make_event(gpu::Timing::kOff);
  const auto join = one.gpu.make_event(gpu::Timing::kOff);
  gpu::Capture capture(one.gpu, one.first);
  one.gpu.record(fork, one.first);
  one.gpu.wait(one.second, fork);
  one.set(one.a, 1, one.first);
  one.set(one.a, 2, one.second);
  one.gpu.record(join, one.second);
  one.gpu.wait(one.first, join);
  const gpu::Graph graph = capture.finish();
  EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 2 nodes: 2 kernels");
  EXPECT_TRUE(one.world.violations().empty());
  one.gpu.launch(graph, one.first);
  EXPECT_EQ(one.world.violations().size(), 1U);
  one.synchronize(one.first);
}

TEST(FakeGpu, WhatWaitsForTwoEndsARow) {
  OneGpu one;
  const gpu::Graph graph = capture_fork(one, Ending::kJoinedAndMore);
  EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 3 nodes: 3 kernels");
}

TEST(FakeGpu, EventsOutsideTheGraphAreRecordedByEachLaunch) {
  OneGpu one;
  const auto begin = one.gpu.make_event(gpu::Timing::kOn);
  const auto end = one.gpu.make_event(gpu::Timing::kOn);
  gpu::Capture capture(one.gpu, one.first);
  one.gpu.record_outside(begin, one.first);
  one.set(one.a, 1, one.first);
  one.gpu.record_outside(end, one.first);
  const gpu::Graph graph = capture.finish();
  EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 3 nodes in a row: 1 kernel, 2 events");
  EXPECT_THROW((void)one.gpu.elapsed(begin, end), Error);
  one.gpu.launch(graph, one.first);
  one.gpu.synchronize(end.view(), soon(), "launch");
  EXPECT_EQ(as_int(one.a), 1);
  EXPECT_GT(one.gpu.elapsed(begin, end).count(), 0);
}

TEST(FakeGpu, AnEventThatGoesBeforeItsGraphIsReported) {
  OneGpu one;
  auto recorded = one.gpu.make_event(gpu::Timing::kOn);
  auto other = one.gpu.make_event(gpu::Timing::kOn);
  gpu::Capture capture(one.gpu, one.first);
  one.gpu.record(other, one.first);
  one.gpu.record_outside(recorded, one.first);
  gpu::Graph graph = capture.finish();
  other.reset();  // only the capture needed this event, not the graph
  EXPECT_TRUE(one.world.violations().empty());
  recorded.reset();
  EXPECT_EQ(one.world.violations(), std::vector<std::string>{"an event was destroyed before a graph that records it"});
  one.gpu.launch(graph, one.first);
  one.synchronize(one.first);
}

TEST(FakeGpu, CaptureRefusesWhatCudaRefuses) {
  OneGpu one;
  const auto event = one.gpu.make_event(gpu::Timing::kOff);
  const auto refused = [](const char* part, const auto& call) { expect_error(Errc::kInvalidArgument, part, call); };
  one.set(one.a, 1, one.second);
  one.gpu.record(event, one.second);
  {
    gpu::Capture capture(one.gpu, one.first);
    refused("from outside the capture", [&] { one.gpu.wait(one.first, event); });
    refused("captured stream", [&] { return one.gpu.finished(one.first.view()); });
    one.gpu.record(event, one.first);
    refused("recorded in a capture", [&] { return one.gpu.finished(event.view()); });
  }
  EXPECT_FALSE(one.gpu.capturing(one.first));  // without finish(), ~Capture() abandons the capture
  refused("a capture which is over", [&] { one.gpu.wait(one.second, event); });
}

TEST(FakeGpu, MemoryHasABoundAndAnOwner) {
  FakeWorld world(1);
  FakeRuntime gpu(world, 3, {.memory_bytes = 1000, .uuid = {}});
  auto most = gpu.allocate(900, "the arena");
  EXPECT_EQ(error_of([&] { return gpu.allocate(200, "the workspace"); }),
            "out_of_memory: GPU 3 (fake): not enough memory for the workspace: 200 bytes requested, 100 free");
  most.reset();
  EXPECT_EQ(gpu.memory().free_bytes, 1000U);
  expect_error(Errc::kInvalidArgument, "", [&] { return gpu.allocate(0, "nothing"); });
  const auto stream = gpu.make_stream(gpu::Priority::kNormal);
  int outside = 0;
  expect_error(Errc::kInvalidArgument, "not of this GPU",
               [&] { gpu.fill(&outside, std::byte{0}, sizeof outside, stream); });
}

TEST(FakeGpu, MemoryFreedInUseIsReported) {
  OneGpu one;
  auto memory = one.gpu.allocate(64, "a");
  one.gpu.fill(memory->bytes.data(), std::byte{1}, 64, one.first);
  one.synchronize(one.first);
  EXPECT_TRUE(one.world.violations().empty());
  one.gpu.enqueue(one.first, {"spin", {}, {memory->bytes}, [] { return Work::Poll([] { return false; }); }});
  memory.reset();
  EXPECT_EQ(one.world.violations(), std::vector<std::string>{"memory freed while 'spin' has yet to use it"});
}

}  // namespace
}  // namespace hvd::test::fake_test
