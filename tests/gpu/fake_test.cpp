// Tests the fake GPU. If a real GPU may run work in any order, the fake must run the harmful order for some seeds. If a
// real GPU must keep an order, the fake must keep it for every seed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <thread>
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
    OneGpu fixture(seed);
    fixture.set(fixture.a, 1, fixture.first);
    fixture.set(fixture.a, 2, fixture.second);
    fixture.synchronize(fixture.first);
    fixture.synchronize(fixture.second);
    results.insert(as_int(fixture.a));
    ASSERT_EQ(fixture.world.violations().size(), 1U) << "seed " << seed;
    EXPECT_EQ(fixture.world.violations().front(),
              "race: 'set 1' writes and 'set 2' writes the same memory, and neither waits for the other");
  }
  EXPECT_EQ(results, (std::set<int>{1, 2}));
}

TEST(FakeGpu, CopiesReadTheirSourceLate) {
  OneGpu fixture;
  const auto host = fixture.gpu.allocate_pinned(sizeof(int), "staging");
  const int before = 1, after = 2;
  std::memcpy(host->bytes.data(), &before, sizeof before);
  fixture.gpu.copy(fixture.a->bytes.data(), host->bytes.data(), sizeof(int), fixture.first);
  std::memcpy(host->bytes.data(), &after, sizeof after);  // the caller's mistake: the copy has not run yet
  fixture.synchronize(fixture.first);
  EXPECT_EQ(as_int(fixture.a), 2);
}

enum class Ending : std::uint8_t { kOpen, kJoined, kJoinedAndMore /**< more work after the join */ };

/// Captures a fork and work on both streams. Also captures the join, unless `ending` is kOpen.
gpu::Graph capture_fork(OneGpu& fixture, Ending ending) {
  const auto fork = fixture.gpu.make_event(gpu::Timing::kOff);
  const auto join = fixture.gpu.make_event(gpu::Timing::kOff);
  gpu::Capture capture(fixture.gpu, fixture.first);
  fixture.set(fixture.a, 5, fixture.first);
  fixture.gpu.record(fork, fixture.first);
  fixture.gpu.wait(fixture.second, fork);
  fixture.add(fixture.a, fixture.b, fixture.second);
  fixture.gpu.record(join, fixture.second);
  if (ending != Ending::kOpen) fixture.gpu.wait(fixture.first, join);
  if (ending == Ending::kJoinedAndMore) fixture.set(fixture.a, 2, fixture.first);
  return capture.finish();
}

TEST(FakeGpu, AGraphReplaysWhatWasCaptured) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    OneGpu fixture(seed, gpu::Priority::kHigh);
    fixture.set(fixture.b, 0, fixture.first);
    const gpu::Graph graph = capture_fork(fixture, Ending::kJoined);
    EXPECT_FALSE(fixture.gpu.capturing(fixture.first) || fixture.gpu.capturing(fixture.second));
    EXPECT_EQ(fixture.gpu.shape(graph)->text(), "one graph of 2 nodes in a row: 2 kernels (1 of high priority)");
    fixture.synchronize(fixture.first);
    EXPECT_EQ(as_int(fixture.b), 0);  // the capture itself ran no work
    for (int i = 0; i < 3; ++i) fixture.gpu.launch(graph, fixture.first);
    fixture.synchronize(fixture.first);
    EXPECT_EQ(as_int(fixture.b), 15) << "seed " << seed;
    EXPECT_TRUE(fixture.world.violations().empty());
  }
}

TEST(FakeGpu, FreeingPinnedMemoryWaitsForAllWork) {
  OneGpu fixture;
  auto pinned = fixture.gpu.allocate_pinned(sizeof(int), "staging");
  bool ran = false;
  fixture.gpu.kernel(fixture.first, "other work", {}, {}, [&] { ran = true; });
  pinned.reset();
  EXPECT_TRUE(ran);
  EXPECT_EQ(fixture.world.violations(), std::vector<std::string>{});
}

TEST(FakeGpu, AFullLaunchQueueMakesTheHostWait) {
  FakeWorld world(1);
  FakeOptions options;
  options.launch_queue = 4;
  FakeRuntime gpu(world, 0, options);
  const gpu::Stream stream = gpu.make_stream(gpu::Priority::kNormal);
  int ran = 0;
  const auto launch = [&] { gpu.kernel(stream, "work", {}, {}, [&] { ++ran; }); };
  for (int i = 0; i < 10; ++i) launch();
  EXPECT_GE(ran, 6);
  EXPECT_TRUE(world.violations().empty());
  gpu.drain(stream);
  {
    const gpu::Hold hold(gpu, stream);
    for (int i = 0; i < 3; ++i) launch();
    EXPECT_TRUE(world.violations().empty());
    launch();
  }
  EXPECT_EQ(world.violations(), std::vector<std::string>{"a launch waits for 'hold' for ever"});
  gpu.drain(stream);
}

TEST(FakeGpu, AMissingJoinIsRefused) {
  OneGpu fixture;
  expect_error(Errc::kInvalidArgument, "without a join: nothing waits for 'add'",
               [&] { return capture_fork(fixture, Ending::kOpen); });
  EXPECT_FALSE(fixture.gpu.capturing(fixture.second));
}

TEST(FakeGpu, ARaceInsideAGraphIsFound) {
  OneGpu fixture;
  const auto fork = fixture.gpu.make_event(gpu::Timing::kOff);
  const auto join = fixture.gpu.make_event(gpu::Timing::kOff);
  gpu::Capture capture(fixture.gpu, fixture.first);
  fixture.gpu.record(fork, fixture.first);
  fixture.gpu.wait(fixture.second, fork);
  fixture.set(fixture.a, 1, fixture.first);
  fixture.set(fixture.a, 2, fixture.second);
  fixture.gpu.record(join, fixture.second);
  fixture.gpu.wait(fixture.first, join);
  const gpu::Graph graph = capture.finish();
  EXPECT_EQ(fixture.gpu.shape(graph)->text(), "one graph of 2 nodes: 2 kernels");
  EXPECT_TRUE(fixture.world.violations().empty());
  fixture.gpu.launch(graph, fixture.first);
  EXPECT_EQ(fixture.world.violations().size(), 1U);
  fixture.synchronize(fixture.first);
}

TEST(FakeGpu, WhatWaitsForTwoEndsARow) {
  OneGpu fixture;
  const gpu::Graph graph = capture_fork(fixture, Ending::kJoinedAndMore);
  EXPECT_EQ(fixture.gpu.shape(graph)->text(), "one graph of 3 nodes: 3 kernels");
}

TEST(FakeGpu, EventsOutsideTheGraphAreRecordedByEachLaunch) {
  OneGpu fixture;
  const auto begin = fixture.gpu.make_event(gpu::Timing::kOn);
  const auto end = fixture.gpu.make_event(gpu::Timing::kOn);
  gpu::Capture capture(fixture.gpu, fixture.first);
  fixture.gpu.record_outside(begin, fixture.first);
  fixture.set(fixture.a, 1, fixture.first);
  fixture.gpu.record_outside(end, fixture.first);
  const gpu::Graph graph = capture.finish();
  EXPECT_EQ(fixture.gpu.shape(graph)->text(), "one graph of 3 nodes in a row: 1 kernel, 2 events");
  EXPECT_THROW((void)fixture.gpu.elapsed(begin, end), Error);
  fixture.gpu.launch(graph, fixture.first);
  fixture.gpu.synchronize(end.view(), soon(), "launch");
  EXPECT_EQ(as_int(fixture.a), 1);
  EXPECT_GT(fixture.gpu.elapsed(begin, end).count(), 0);
}

TEST(FakeGpu, AnEventThatGoesBeforeItsGraphIsReported) {
  OneGpu fixture;
  auto recorded = fixture.gpu.make_event(gpu::Timing::kOn);
  auto other = fixture.gpu.make_event(gpu::Timing::kOn);
  gpu::Capture capture(fixture.gpu, fixture.first);
  fixture.gpu.record(other, fixture.first);
  fixture.gpu.record_outside(recorded, fixture.first);
  gpu::Graph graph = capture.finish();
  other.reset();  // only the capture needed this event, not the graph
  EXPECT_TRUE(fixture.world.violations().empty());
  recorded.reset();
  EXPECT_EQ(fixture.world.violations(),
            std::vector<std::string>{"an event was destroyed before a graph that records it"});
  fixture.gpu.launch(graph, fixture.first);
  fixture.synchronize(fixture.first);
}

TEST(FakeGpu, CaptureRefusesWhatCudaRefuses) {
  OneGpu fixture;
  const auto event = fixture.gpu.make_event(gpu::Timing::kOff);
  const auto refused = [](const char* part, const auto& call) { expect_error(Errc::kInvalidArgument, part, call); };
  fixture.set(fixture.a, 1, fixture.second);
  fixture.gpu.record(event, fixture.second);
  {
    gpu::Capture capture(fixture.gpu, fixture.first);
    refused("from outside the capture", [&] { fixture.gpu.wait(fixture.first, event); });
    refused("captured stream", [&] { return fixture.gpu.finished(fixture.first.view()); });
    fixture.gpu.record(event, fixture.first);
    refused("recorded in a capture", [&] { return fixture.gpu.finished(event.view()); });
  }
  EXPECT_FALSE(fixture.gpu.capturing(fixture.first));  // without finish(), ~Capture() abandons the capture
  refused("a capture which is over", [&] { fixture.gpu.wait(fixture.second, event); });
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
  OneGpu fixture;
  auto memory = fixture.gpu.allocate(64, "a");
  fixture.gpu.fill(memory->bytes.data(), std::byte{1}, 64, fixture.first);
  fixture.synchronize(fixture.first);
  EXPECT_TRUE(fixture.world.violations().empty());
  bool over = false;
  fixture.gpu.enqueue(fixture.first, {"spin", {}, {memory->bytes}, [&] { return Work::Poll([&] { return over; }); }});
  memory.reset();
  over = true;
  EXPECT_EQ(fixture.world.violations(), std::vector<std::string>{"memory freed while 'spin' has yet to use it"});
}

TEST(FakeGpu, FreeingMemoryWaitsForAllWorkOfTheGpu) {
  OneGpu fixture;
  auto memory = fixture.gpu.allocate(64, "a");
  std::atomic<int> polls{0};
  fixture.gpu.enqueue(fixture.first, {"short", {}, {}, [&] { return Work::Poll([&] { return ++polls == 5; }); }});
  memory.reset();
  EXPECT_EQ(polls, 5);
  EXPECT_TRUE(fixture.world.violations().empty());
}

TEST(FakeGpu, AThreadThatCapturesMayNotAllocateOrAsk) {
  OneGpu fixture;
  auto memory = fixture.gpu.allocate(64, "a");
  const gpu::Event event = fixture.gpu.make_event(gpu::Timing::kOff);
  gpu::Capture capture(fixture.gpu, fixture.first);
  EXPECT_THROW(static_cast<void>(fixture.gpu.allocate(64, "b")), Error);
  EXPECT_THROW(static_cast<void>(fixture.gpu.allocate_pinned(64, "c")), Error);
  EXPECT_THROW(static_cast<void>(fixture.gpu.finished(event)), Error);
  EXPECT_THROW(static_cast<void>(fixture.gpu.finished(fixture.second)), Error);
  std::thread([&] {
    EXPECT_TRUE(fixture.gpu.finished(event)) << "other threads may ask";
    EXPECT_THROW(static_cast<void>(fixture.gpu.end_capture(fixture.first)), Error);
  }).join();
  memory.reset();
  EXPECT_EQ(fixture.world.violations(), std::vector<std::string>{"memory freed during a capture"});
  static_cast<void>(capture.finish());
}

}  // namespace
}  // namespace hvd::test::fake_test
