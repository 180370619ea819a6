#include "engine/base/error.h"
#include "engine/gpu/kernels.h"

namespace hvd::gpu {

std::string kernels_refusal(const Device& /*device*/) {
  return "this build has no kernels: there was no cuDNN, or no CUDA compiler that works (see CMake's summary)";
}

void scale_on_gpu(std::byte* /*data*/, std::size_t /*count*/, DataType /*dtype*/, double /*factor*/,
                  CUstream_st* /*stream*/) {
  throw Error(Errc::kUnsupported, kernels_refusal({}));
}

void start_timer_on_gpu(DeviceTimer* /*timer*/, CUstream_st* /*stream*/) {
  throw Error(Errc::kUnsupported, kernels_refusal({}));
}

void await_timer_on_gpu(const DeviceTimer* /*timer*/, std::chrono::nanoseconds /*after*/, CUstream_st* /*stream*/) {
  throw Error(Errc::kUnsupported, kernels_refusal({}));
}

}  // namespace hvd::gpu
