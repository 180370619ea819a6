// Tests the kernels of a timer, compiled for the host, with clocks that the test sets. A wait must last as long as it
// should, and end by itself whatever the clocks do.
#include "engine/gpu/timer.h"

#include <gtest/gtest.h>

#include <chrono>

#include "engine/gpu/kernels.h"
#include "tests/gpu/host_clock.h"

namespace hvd::timer_test {
namespace {

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
}  // namespace hvd::timer_test
