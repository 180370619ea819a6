// The interface through which a session lists and opens GPUs, loads the library that reduces between GPUs, and makes
// the step that trains on a GPU. main() passes in CUDA's implementation; a test passes in its own.
//
// Threads: any thread may call a GpuBackend. The returned objects belong to the caller's thread.
#pragma once

#include <memory>
#include <string>

#include "bench/store/process_start.h"
#include "engine/comm/nccl/api.h"
#include "engine/gpu/device.h"
#include "engine/gpu/runtime.h"
#include "models/cudnn/run/cudnn_step.h"
#include "models/device_step.h"

namespace hvd::bench {

class GpuBackend {
 public:
  virtual ~GpuBackend() = default;

  /// Lists the GPUs that this process may use. Never fails.
  [[nodiscard]] virtual gpu::DeviceList list() = 0;
  /// Returns why no step can run on a GPU that is present (a library is missing or too old), or "" if steps can run.
  [[nodiscard]] virtual std::string unsupported_reason() = 0;
  /// Opens the GPU with this index in list(). Errors: unsupported; backend.
  [[nodiscard]] virtual std::unique_ptr<gpu::GpuRuntime> open(int index) = 0;
  /// Loads NCCL. `runtime` is this rank's GPU. Errors: unsupported; the text says where NCCL was searched.
  [[nodiscard]] virtual std::shared_ptr<comm::nccl::Api> load_nccl(gpu::GpuRuntime& runtime) = 0;
  /// Makes the step that trains `graph` on a GPU. Errors: those of models::make_cudnn_step().
  [[nodiscard]] virtual std::unique_ptr<models::DeviceStep> make_step(models::Graph graph,
                                                                      const models::StepOptions& options,
                                                                      const models::CudnnOptions& cudnn,
                                                                      gpu::GpuRuntime& runtime,
                                                                      const models::ArenaAllocator& allocate) = 0;
};

/// Finds out from the environment where NCCL, cuDNN and cuBLASLt may lie on this machine: see gpu::library_search().
gpu::LibrarySearch library_search(const Environment& environment);

/// Makes the backend for NVIDIA GPUs. In a build without CUDA, the backend lists no GPUs and says why. `environment`
/// says where NVIDIA's libraries are searched.
std::unique_ptr<GpuBackend> make_cuda_backend(const Environment& environment);

/// Returns in one line why no GPU can be used, or "" if a GPU can be used. A null backend has no GPUs.
std::string gpu_absence(GpuBackend* backend);
/// Returns in one line why the list has no GPU, or "" if it has one. Pure.
std::string gpu_absence(const gpu::DeviceList& list);

}  // namespace hvd::bench
