// Replaces the executor in builds without cuDNN's headers or a CUDA compiler.
#include "engine/base/error.h"
#include "models/cudnn/run/cudnn_step.h"

namespace hvd::models {

std::unique_ptr<DeviceStep> make_cudnn_step(Graph /*graph*/, const StepOptions& /*options*/,
                                            const CudnnOptions& /*cudnn*/, gpu::GpuRuntime& /*runtime*/,
                                            const ArenaAllocator& /*allocate*/) {
  throw Error(Errc::kUnsupported, cudnn_unsupported_reason({}));
}

std::string cudnn_unsupported_reason(const gpu::LibrarySearch& /*libraries*/) {
  return "this build trains on CPUs only: install the CUDA Toolkit 12 or newer (with nvcc) and cuDNN 8.9 or 9 with "
         "headers, then configure and build again (-DHVD_CUDNN_ROOT=... if cuDNN is in a place of its own)";
}

}  // namespace hvd::models
