#include "engine/gpu/device_clock.cuh"
#include "engine/gpu/kernels.h"
#include "engine/gpu/launch.cuh"

namespace hvd::gpu {
namespace {

constexpr std::uint64_t kMaxNanoseconds = std::chrono::nanoseconds(kMaxTimerWait).count();
// Ends a wait where the GPU's clock stands still. No GPU makes 3.4e9 cycles a second, so that kMaxTimerWait always comes
// first while the clock runs. At 1.4 GHz, the clock of an A100, these are 1.2 s.
constexpr std::uint64_t kMaxCycles = 1'700'000'000;

__global__ void start_timer_kernel(DeviceTimer* timer) {
  if (threadIdx.x == 0) timer->start = device_nanoseconds();
}

// All differences are unsigned, so that a clock which goes back ends the wait.
__global__ void await_timer_kernel(const DeviceTimer* timer, double after) {
  if (threadIdx.x != 0) return;
  const double wait = after * timer->factor;
  const std::uint64_t start = timer->start, begin = device_nanoseconds(), first_cycle = device_cycles();
  for (std::uint64_t now = begin; static_cast<double>(now - start) < wait; now = device_nanoseconds()) {
    if (now - begin >= kMaxNanoseconds || device_cycles() - first_cycle >= kMaxCycles) return;
    nap();
  }
}

}  // namespace

void start_timer_on_gpu(DeviceTimer* timer, CUstream_st* stream) {
  launch_blocks("start timer", start_timer_kernel, dim3(1), stream, timer);
}

void await_timer_on_gpu(const DeviceTimer* timer, std::chrono::nanoseconds after, CUstream_st* stream) {
  launch_blocks("await timer", await_timer_kernel, dim3(1), stream, timer, static_cast<double>(after.count()));
}

}  // namespace hvd::gpu
