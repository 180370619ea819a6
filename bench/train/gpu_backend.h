// What a session needs of GPUs: which there are, one of them opened, the library that reduces between them, and the
// step that trains on one. main() hands over CUDA's, a test its own.
//
// Threads: any; what it returns belongs to the caller's thread.
#pragma once

#include <memory>
#include <string>

#include "bench/cli/environment.h"
#include "engine/comm/nccl/api.h"
#include "engine/gpu/device.h"
#include "engine/gpu/runtime.h"
#include "models/cudnn/cudnn_step.h"
#include "models/device_step.h"

namespace hvd::bench {

class GpuBackend {
 public:
  virtual ~GpuBackend() = default;

  /// GPUs that this process may use. Never fails.
  [[nodiscard]] virtual gpu::DeviceList list() = 0;
  /// Why no step could be computed on a GPU that is there (a library is missing or too old); empty: it could.
  [[nodiscard]] virtual std::string unsupported_reason() = 0;
  /// The GPU with this index in list(). Errors: unsupported; backend.
  [[nodiscard]] virtual std::unique_ptr<gpu::Runtime> open(int index) = 0;
  /// For communication between GPUs; `runtime` is this rank's. Errors: unsupported, with where it was looked for.
  [[nodiscard]] virtual std::shared_ptr<comm::nccl::Api> load_nccl(gpu::Runtime& runtime) = 0;
  /// Errors: those of models::make_cudnn_step().
  [[nodiscard]] virtual std::unique_ptr<models::DeviceStep> make_step(models::Graph graph,
                                                                      const models::StepOptions& options,
                                                                      const models::CudnnOptions& cudnn,
                                                                      gpu::Runtime& runtime,
                                                                      const models::ArenaAllocator& allocate) = 0;
};

/// NVIDIA's, in any build: in one without CUDA there are no GPUs, and the reason says so. `environment`: where its
/// libraries are looked for.
std::unique_ptr<GpuBackend> make_cuda_backend(const Environment& environment);

/// Why no GPU can be used, in one line; empty: one can. A null backend has none.
std::string gpu_absence(GpuBackend* backend);
/// The same of a list. Pure.
std::string gpu_absence(const gpu::DeviceList& list);

/// Index of the GPU that a rank takes: its local rank's, or the one that the launcher left it
/// (CUDA_VISIBLE_DEVICES). Whether two ranks have the same one is found out when they have met. Pure.
int gpu_of_rank(int local_rank, std::size_t visible);

}  // namespace hvd::bench
