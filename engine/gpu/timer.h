// A timer on a GPU, for work that must last as long as was recorded. It lies in device memory, so that a captured graph
// starts it anew in each launch and reads the factor that the host has copied there before the launch.
#pragma once

#include <chrono>
#include <cstdint>

namespace hvd::gpu {

struct DeviceTimer {
  std::uint64_t start = 0;  ///< GPU's clock in nanoseconds, written by GpuRuntime::start_timer()
  double factor = 1;        ///< multiplies the times of GpuRuntime::await_timer(); written by the owner
};

/// A kernel of GpuRuntime::await_timer() ends at the latest after this time.
constexpr std::chrono::milliseconds kMaxTimerWait{500};

}  // namespace hvd::gpu
