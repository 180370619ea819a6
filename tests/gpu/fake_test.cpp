// Tests the fake GPU. Where a real GPU may run work in any order, the fake must run the harmful order in some seeds.
// Where a real GPU must keep an order, the fake must keep the same order.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "tests/gpu/fake_runtime.h"

namespace hvd::test::fake_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeeds = 40;

Deadline soon() { return Deadline::after(5s); }

int& as_int(const gpu::DeviceMemory& memory) { return *reinterpret_cast<int*>(memory->bytes.data()); }

/// The error that `body` throws, as "code: text"; empty if it throws none.
template <class Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::string(name(error.code())) + ": " + error.what();
  }
  return {};
}

struct OneGpu {
  explicit OneGpu(std::uint64_t seed = 1) : world(seed), gpu(world, 0) {}
  void set(const gpu::DeviceMemory& memory, int value, gpu::StreamView stream) {
    gpu.kernel(stream, "set " + std::to_string(value), {}, {memory->bytes},
               [&memory, value] { as_int(memory) = value; });
  }
  void add(const gpu::DeviceMemory& from, const gpu::DeviceMemory& to, gpu::StreamView stream) {
    gpu.kernel(stream, "add", {from->bytes, to->bytes}, {to->bytes}, [&from, &to] { as_int(to) += as_int(from); });
  }
  FakeWorld world;
  FakeRuntime gpu;
};

TEST(FakeGpu, StreamOrderIsKeptAndNothingRunsUnasked) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    OneGpu one(seed);
    const auto stream = one.gpu.make_stream(gpu::Priority::kNormal);
    const auto memory = one.gpu.allocate(sizeof(int), "a");
    for (int i = 0; i < 10; ++i) one.set(memory, i, stream);
    EXPECT_NE(as_int(memory), 9);
    one.gpu.synchronize(stream.view(), soon(), "ten kernels");
    EXPECT_EQ(as_int(memory), 9);
    EXPECT_TRUE(one.world.violations().empty());
  }
}

TEST(FakeGpu, StreamsWithoutAnEventRunInAnyOrderAndTheRaceIsFound) {
  std::set<int> results;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    OneGpu one(seed);
    const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
    const auto second = one.gpu.make_stream(gpu::Priority::kHigh);
    const auto memory = one.gpu.allocate(sizeof(int), "a");
    one.set(memory, 1, first);
    one.set(memory, 2, second);
    one.gpu.synchronize(first.view(), soon(), "first");
    one.gpu.synchronize(second.view(), soon(), "second");
    results.insert(as_int(memory));
    ASSERT_EQ(one.world.violations().size(), 1U) << "seed " << seed;
    EXPECT_EQ(one.world.violations().front(),
              "race: 'set 1' writes and 'set 2' writes the same memory, and neither waits for the other");
  }
  EXPECT_EQ(results, (std::set<int>{1, 2}));
}

TEST(FakeGpu, EventsOrderStreams) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    OneGpu one(seed);
    const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
    const auto second = one.gpu.make_stream(gpu::Priority::kHigh);
    const auto event = one.gpu.make_event(gpu::Timing::kOff);
    const auto a = one.gpu.allocate(sizeof(int), "a");
    const auto b = one.gpu.allocate(sizeof(int), "b");
    one.set(b, 100, second);
    one.set(a, 7, first);
    one.gpu.record(event, first);
    one.gpu.wait(second, event);
    one.add(a, b, second);
    one.gpu.synchronize(second.view(), soon(), "sum");
    EXPECT_EQ(as_int(b), 107) << "seed " << seed;
    EXPECT_TRUE(one.world.violations().empty());
  }
}

TEST(FakeGpu, WhatTheHostHasSeenIsOrdered) {
  OneGpu one;
  const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto second = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto memory = one.gpu.allocate(sizeof(int), "a");
  one.set(memory, 1, first);
  one.gpu.synchronize(first.view(), soon(), "first");
  one.set(memory, 2, second);
  one.gpu.synchronize(second.view(), soon(), "second");
  EXPECT_EQ(as_int(memory), 2);
  EXPECT_TRUE(one.world.violations().empty());
}

TEST(FakeGpu, CopiesReadTheirSourceLate) {
  OneGpu one;
  const auto stream = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto host = one.gpu.allocate_pinned(sizeof(int), "staging");
  const auto device = one.gpu.allocate(sizeof(int), "a");
  const int before = 1, after = 2;
  std::memcpy(host->bytes.data(), &before, sizeof before);
  one.gpu.copy(device->bytes.data(), host->bytes.data(), sizeof(int), stream);
  std::memcpy(host->bytes.data(), &after, sizeof after);  // the mistake: the copy has not run yet
  one.gpu.synchronize(stream.view(), soon(), "copy");
  EXPECT_EQ(as_int(device), 2);
}

enum class Ending : std::uint8_t { kOpen, kJoined, kJoinedAndMore /**< more work after the join */ };

/// Captures a fork, work on both streams, and the join unless `ending` is kOpen.
gpu::Graph capture_fork(OneGpu& one, const gpu::Stream& first, const gpu::Stream& second, const gpu::DeviceMemory& a,
                        const gpu::DeviceMemory& b, Ending ending) {
  const auto fork = one.gpu.make_event(gpu::Timing::kOff);
  const auto join = one.gpu.make_event(gpu::Timing::kOff);
  gpu::Capture capture(one.gpu, first);
  one.set(a, 5, first);
  one.gpu.record(fork, first);
  one.gpu.wait(second, fork);
  one.add(a, b, second);
  one.gpu.record(join, second);
  if (ending != Ending::kOpen) one.gpu.wait(first, join);
  if (ending == Ending::kJoinedAndMore) one.set(a, 2, first);
  return capture.finish();
}

TEST(FakeGpu, AGraphReplaysWhatWasCaptured) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    OneGpu one(seed);
    const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
    const auto second = one.gpu.make_stream(gpu::Priority::kHigh);
    const auto a = one.gpu.allocate(sizeof(int), "a");
    const auto b = one.gpu.allocate(sizeof(int), "b");
    one.set(b, 0, first);
    const gpu::Graph graph = capture_fork(one, first, second, a, b, Ending::kJoined);
    EXPECT_FALSE(one.gpu.capturing(first) || one.gpu.capturing(second));
    EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 2 nodes in a row: 2 kernels (1 of high priority)");
    one.gpu.synchronize(first.view(), soon(), "set");
    EXPECT_EQ(as_int(b), 0);  // capturing runs nothing
    for (int i = 0; i < 3; ++i) one.gpu.launch(graph, first);
    one.gpu.synchronize(first.view(), soon(), "launches");
    EXPECT_EQ(as_int(b), 15) << "seed " << seed;
    EXPECT_TRUE(one.world.violations().empty());
  }
}

TEST(FakeGpu, AMissingJoinIsRefused) {
  OneGpu one;
  const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto second = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto a = one.gpu.allocate(sizeof(int), "a");
  const auto b = one.gpu.allocate(sizeof(int), "b");
  EXPECT_NE(error_of([&] {
              (void)capture_fork(one, first, second, a, b, Ending::kOpen);
            }).find("without a join: nothing waits for 'add'"),
            std::string::npos);
  EXPECT_FALSE(one.gpu.capturing(second));
}

TEST(FakeGpu, ARaceInsideAGraphIsFound) {
  OneGpu one;
  const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto second = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto fork = one.gpu.make_event(gpu::Timing::kOff);
  const auto join = one.gpu.make_event(gpu::Timing::kOff);
  const auto a = one.gpu.allocate(sizeof(int), "a");
  gpu::Capture capture(one.gpu, first);
  one.gpu.record(fork, first);
  one.gpu.wait(second, fork);
  one.set(a, 1, first);
  one.set(a, 2, second);
  one.gpu.record(join, second);
  one.gpu.wait(first, join);
  const gpu::Graph graph = capture.finish();
  EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 2 nodes: 2 kernels");
  EXPECT_TRUE(one.world.violations().empty());
  one.gpu.launch(graph, first);
  EXPECT_EQ(one.world.violations().size(), 1U);
  one.gpu.synchronize(first.view(), soon(), "launch");
}

TEST(FakeGpu, WhatWaitsForTwoEndsARow) {
  OneGpu one;
  const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto second = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto a = one.gpu.allocate(sizeof(int), "a");
  const auto b = one.gpu.allocate(sizeof(int), "b");
  const gpu::Graph graph = capture_fork(one, first, second, a, b, Ending::kJoinedAndMore);
  EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 3 nodes: 3 kernels");
}

TEST(FakeGpu, EventsOutsideTheGraphAreRecordedByEachLaunch) {
  OneGpu one;
  const auto stream = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto begin = one.gpu.make_event(gpu::Timing::kOn);
  const auto end = one.gpu.make_event(gpu::Timing::kOn);
  const auto a = one.gpu.allocate(sizeof(int), "a");
  gpu::Capture capture(one.gpu, stream);
  one.gpu.record_outside(begin, stream);
  one.set(a, 1, stream);
  one.gpu.record_outside(end, stream);
  const gpu::Graph graph = capture.finish();
  EXPECT_EQ(one.gpu.shape(graph)->text(), "one graph of 3 nodes in a row: 1 kernel, 2 events");
  EXPECT_NE(error_of([&] { (void)one.gpu.elapsed(begin, end); }), "");
  one.gpu.launch(graph, stream);
  one.gpu.synchronize(end.view(), soon(), "launch");
  EXPECT_EQ(as_int(a), 1);
  EXPECT_GT(one.gpu.elapsed(begin, end).count(), 0);
}

TEST(FakeGpu, AnEventThatGoesBeforeItsGraphIsReported) {
  OneGpu one;
  const auto stream = one.gpu.make_stream(gpu::Priority::kNormal);
  auto recorded = one.gpu.make_event(gpu::Timing::kOn);
  auto other = one.gpu.make_event(gpu::Timing::kOn);
  gpu::Capture capture(one.gpu, stream);
  one.gpu.record(other, stream);
  one.gpu.record_outside(recorded, stream);
  gpu::Graph graph = capture.finish();
  other.reset();  // only the capture needed this event
  EXPECT_TRUE(one.world.violations().empty());
  recorded.reset();
  EXPECT_EQ(one.world.violations(), std::vector<std::string>{"an event was destroyed before a graph that records it"});
  one.gpu.launch(graph, stream);
  one.gpu.synchronize(stream.view(), soon(), "launch");
}

TEST(FakeGpu, CaptureRefusesWhatCudaRefuses) {
  OneGpu one;
  const auto first = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto second = one.gpu.make_stream(gpu::Priority::kNormal);
  const auto event = one.gpu.make_event(gpu::Timing::kOff);
  const auto a = one.gpu.allocate(sizeof(int), "a");
  one.set(a, 1, second);
  one.gpu.record(event, second);
  {
    gpu::Capture capture(one.gpu, first);
    EXPECT_NE(error_of([&] { one.gpu.wait(first, event); }).find("from outside the capture"), std::string::npos);
    EXPECT_NE(error_of([&] { (void)one.gpu.finished(first.view()); }).find("captured stream"), std::string::npos);
    one.gpu.record(event, first);
    EXPECT_NE(error_of([&] { (void)one.gpu.finished(event.view()); }).find("recorded in a capture"), std::string::npos);
  }
  EXPECT_FALSE(one.gpu.capturing(first));  // the capture was abandoned
  EXPECT_NE(error_of([&] { one.gpu.wait(second, event); }).find("a capture which is over"), std::string::npos);
}

TEST(FakeGpu, MemoryHasABoundAndAnOwner) {
  FakeWorld world(1);
  FakeRuntime gpu(world, 3, {.memory_bytes = 1000, .uuid = {}});
  auto most = gpu.allocate(900, "the arena");
  EXPECT_EQ(error_of([&] { (void)gpu.allocate(200, "the workspace"); }),
            "out_of_memory: GPU 3 (fake): not enough memory for the workspace: 200 bytes requested, 100 free");
  most.reset();
  EXPECT_EQ(gpu.memory().free_bytes, 1000U);
  EXPECT_NE(error_of([&] { (void)gpu.allocate(0, "nothing"); }).find("invalid_argument"), std::string::npos);
  const auto stream = gpu.make_stream(gpu::Priority::kNormal);
  int outside = 0;
  EXPECT_NE(error_of([&] { gpu.fill(&outside, std::byte{0}, sizeof outside, stream); }).find("not of this GPU"),
            std::string::npos);
}

TEST(FakeGpu, MemoryFreedInUseIsReported) {
  OneGpu one;
  const auto stream = one.gpu.make_stream(gpu::Priority::kNormal);
  auto memory = one.gpu.allocate(64, "a");
  one.gpu.fill(memory->bytes.data(), std::byte{1}, 64, stream);
  one.gpu.synchronize(stream.view(), soon(), "fill");
  EXPECT_TRUE(one.world.violations().empty());
  one.gpu.enqueue(stream, {"spin", {}, {memory->bytes}, [] { return Work::Poll([] { return false; }); }});
  memory.reset();
  ASSERT_EQ(one.world.violations().size(), 1U);
  EXPECT_EQ(one.world.violations().front(), "memory freed while 'spin' has yet to use it");
}

TEST(FakeGpu, AHangEndsAtTheDeadlineAndNamesTheWait) {
  OneGpu one;
  const auto stream = one.gpu.make_stream(gpu::Priority::kNormal);
  one.gpu.enqueue(stream, {"spin", {}, {}, [] { return Work::Poll([] { return false; }); }});
  const std::string text = error_of([&] { one.gpu.synchronize(stream.view(), Deadline::after(20ms), "step 17"); });
  EXPECT_NE(text.find("timeout: GPU 0 (fake): step 17 did not finish within 0.0"), std::string::npos) << text;
  int looks = 0;
  EXPECT_EQ(error_of([&] {
              one.gpu.synchronize(stream.view(), soon(), "step 18", [&] {
                if (++looks == 3) throw Error(Errc::kPeerLost, "rank 1 is lost");
              });
            }),
            "peer_lost: rank 1 is lost");
}

TEST(FakeGpu, AFailedKernelBreaksTheGpu) {
  OneGpu one;
  const auto stream = one.gpu.make_stream(gpu::Priority::kNormal);
  one.gpu.kernel(stream, "bad", {}, {}, [] { throw std::runtime_error("an illegal memory access"); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { one.gpu.synchronize(stream.view(), soon(), "bad"); }),
              "backend: fake GPU 0: an illegal memory access");
  }
}

TEST(Owners, MoveAndReleaseOnce) {
  FakeWorld world(1);
  {
    FakeRuntime gpu(world, 0);
    gpu::Stream first = gpu.make_stream(gpu::Priority::kNormal);
    gpu::Stream second = std::move(first);
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): tests the moved-from stream
    EXPECT_EQ(gpu.objects(), 1U);
    second = gpu.make_stream(gpu::Priority::kHigh);
    EXPECT_EQ(gpu.objects(), 1U);
    second.reset();
    EXPECT_EQ(gpu.objects(), 0U);
  }
  EXPECT_TRUE(world.violations().empty());
}

}  // namespace
}  // namespace hvd::test::fake_test
