// Tests the scaling kernel, compiled for the host. The kernel must scale every element once and give the same bits as
// hvd::scale().
#include "engine/gpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/base/scale.h"
#include "engine/gpu/timer.h"
#include "tests/base/errors.h"
#include "tests/gpu/host_clock.h"

namespace hvd::kernels_test {
namespace {

/// Returns random bits, with NaN, infinities and subnormal values among them.
std::vector<std::byte> random_bytes(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(Philox(1, 2).block(i)[0]);
  return data;
}

TEST(ScaleKernel, GivesTheBitsOfTheHost) {
  for (const DataType type : {DataType::kF32, DataType::kF64, DataType::kF16, DataType::kBF16}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{5000}}) {
      for (const double factor : {2.0, -1.0 / 3, 1e300, 0.0}) {
        std::vector<std::byte> expected = random_bytes(count * size_of(type) + 8);  // the last 8 bytes must not change
        std::vector<std::byte> got = expected;
        scale(expected.data(), count, type, factor);
        gpu::scale_on_gpu(got.data(), count, type, factor, nullptr);
        EXPECT_EQ(got, expected) << count << " " << name(type) << " times " << factor;
      }
    }
  }
}

TEST(ScaleKernel, RefusesIntegers) {
  std::vector<std::byte> data(16);
  const std::string expected = "invalid_argument: elements of int32 cannot be scaled";
  EXPECT_EQ(test::error_of([&] { scale(data.data(), 4, DataType::kI32, 2); }), expected);
  EXPECT_EQ(test::error_of([&] { gpu::scale_on_gpu(data.data(), 4, DataType::kI32, 2, nullptr); }), expected);
}

// Tests the kernels of a timer, compiled for the host, with clocks that the test sets. A wait must last as long as it
// should, and end by itself whatever the clocks do.

using namespace std::chrono_literals;

/// Sets the clocks and starts a timer.
gpu::DeviceTimer started(test::HostClock clock, double factor = 1) {
  test::host_clock = clock;
  gpu::DeviceTimer timer{.start = 0, .factor = factor};
  gpu::start_timer_on_gpu(&timer, nullptr);
  return timer;
}

std::chrono::nanoseconds since_start(const gpu::DeviceTimer& timer) {
  return std::chrono::nanoseconds(test::host_clock.nanoseconds - timer.start);
}

TEST(TimerKernel, WaitsUntilATimeSinceTheStart) {
  const gpu::DeviceTimer timer = started({.nanoseconds = 1'000'000'000'000'000'000});
  EXPECT_EQ(timer.start, 1'000'000'000'000'000'000U);
  gpu::await_timer_on_gpu(&timer, 20us, nullptr);
  EXPECT_EQ(since_start(timer), 20us);
  gpu::await_timer_on_gpu(&timer, 30us, nullptr);
  EXPECT_EQ(since_start(timer), 30us) << "from the start, not from the wait before";
  gpu::await_timer_on_gpu(&timer, 30us, nullptr);
  gpu::await_timer_on_gpu(&timer, 10us, nullptr);
  EXPECT_EQ(since_start(timer), 30us) << "a time that is over takes none";
  gpu::await_timer_on_gpu(&timer, gpu::kMaxTimerWait, nullptr);
  EXPECT_EQ(since_start(timer), gpu::kMaxTimerWait);
}

TEST(TimerKernel, TakesTheFactorWhenItRuns) {
  gpu::DeviceTimer timer = started({}, 2.5);
  gpu::await_timer_on_gpu(&timer, 20us, nullptr);
  EXPECT_EQ(since_start(timer), 50us);
  timer.factor = 10;
  gpu::await_timer_on_gpu(&timer, 20us, nullptr);
  EXPECT_EQ(since_start(timer), 200us);
}

TEST(TimerKernel, WaitsNoLongerThanItMay) {
  gpu::DeviceTimer timer = started({});
  gpu::await_timer_on_gpu(&timer, 24h, nullptr);
  EXPECT_EQ(since_start(timer), gpu::kMaxTimerWait);
  timer.factor = 1e300;
  gpu::await_timer_on_gpu(&timer, 24h, nullptr);
  EXPECT_EQ(since_start(timer), 2 * gpu::kMaxTimerWait);
}

TEST(TimerKernel, EndsWhereTheClockStandsStillOrGoesBack) {
  gpu::DeviceTimer timer = started({.nap_nanoseconds = 0, .nap_cycles = 1'000'000});
  gpu::await_timer_on_gpu(&timer, 1ms, nullptr);
  EXPECT_EQ(test::host_clock.cycles, 1'700'000'000U) << "1.2 s at 1.4 GHz";

  timer = started({.nanoseconds = 5000, .nap_nanoseconds = std::uint64_t{0} - 1000});
  gpu::await_timer_on_gpu(&timer, 1ms, nullptr);
  EXPECT_EQ(test::host_clock.naps, 1U);

  timer = started({.cycles = 5000, .nap_nanoseconds = 0, .nap_cycles = std::uint64_t{0} - 2000});
  gpu::await_timer_on_gpu(&timer, 1ms, nullptr);
  EXPECT_EQ(test::host_clock.naps, 1U) << "another multiprocessor has other cycles";
}

}  // namespace

}  // namespace hvd::kernels_test
