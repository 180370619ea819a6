// The clocks of a GPU. Tests that compile kernels for the host include a different device_clock.cuh (tests/gpu/host),
// whose clocks a test sets.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hvd::gpu {

/// Returns the GPU's clock, which all multiprocessors share. Source: PTX ISA, special register %globaltimer, whose
/// resolution depends on the GPU.
__device__ inline std::uint64_t device_nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Returns the cycles that this multiprocessor has made.
__device__ inline std::uint64_t device_cycles() { return static_cast<std::uint64_t>(clock64()); }

/// Sleeps for at most 0.2 us. GPUs of compute capability below 7.0 cannot sleep.
__device__ inline void nap() {
#if __CUDA_ARCH__ >= 700
  __nanosleep(100);  // sleeps for at most twice this time
#endif
}

}  // namespace hvd::gpu
