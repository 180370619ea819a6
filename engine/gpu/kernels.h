// The engine's own kernels. A build without the CUDA compiler has none (no_kernels.cpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "engine/base/types.h"
#include "engine/gpu/device.h"
#include "engine/gpu/timer.h"

struct CUstream_st;

namespace hvd::gpu {

/// Returns the reason, in one line, why there are no kernels for `device`; empty if there are kernels. Any thread may
/// call this function.
std::string kernels_refusal(const Device& device);

/// Enqueues on `stream` of the current GPU a kernel that multiplies `count` elements of device memory by `factor`. The
/// results have the same bits as those of hvd::scale(). Errors: invalid_argument for integers; backend if CUDA refuses
/// the launch.
void scale_on_gpu(std::byte* data, std::size_t count, DataType dtype, double factor, CUstream_st* stream);

/// The kernels of GpuRuntime::start_timer() and await_timer(), on `stream` of the current GPU. Errors: backend if CUDA
/// refuses the launch.
void start_timer_on_gpu(DeviceTimer* timer, CUstream_st* stream);
void await_timer_on_gpu(const DeviceTimer* timer, std::chrono::nanoseconds after, CUstream_st* stream);

}  // namespace hvd::gpu
