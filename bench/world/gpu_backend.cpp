#include "bench/world/gpu_backend.h"

#include <mutex>
#include <utility>

namespace hvd::bench {
namespace {

class CudaBackend final : public GpuBackend {
 public:
  explicit CudaBackend(Environment environment) : environment_(std::move(environment)) {}

  gpu::DeviceList list() override { return gpu::list_devices(); }
  std::string unsupported_reason() override { return models::cudnn_unsupported_reason(libraries()); }
  std::unique_ptr<gpu::GpuRuntime> open(int index) override { return gpu::make_cuda_runtime(index); }
  std::shared_ptr<comm::nccl::Api> load_nccl(gpu::GpuRuntime& /*runtime*/) override {
    return comm::nccl::load(libraries());
  }
  std::unique_ptr<models::DeviceStep> make_step(models::Graph graph, const models::StepOptions& options,
                                                const models::CudnnOptions& cudnn, gpu::GpuRuntime& runtime,
                                                const models::ArenaAllocator& allocate) override {
    models::CudnnOptions with = cudnn;
    with.libraries = libraries();
    return models::make_cudnn_step(std::move(graph), options, with, runtime, allocate);
  }

 private:
  /// Looks for libraries on the first call, because most programs use no GPU.
  const gpu::LibrarySearch& libraries() {
    std::call_once(once_, [this] { libraries_ = library_search(environment_); });
    return libraries_;
  }

  const Environment environment_;
  std::once_flag once_;
  gpu::LibrarySearch libraries_;
};

}  // namespace

gpu::LibrarySearch library_search(const Environment& environment) {
  return gpu::library_search([&](const char* variable) { return value_of(environment, variable); });
}

std::unique_ptr<GpuBackend> make_cuda_backend(const Environment& environment) {
  return std::make_unique<CudaBackend>(environment);
}

std::string gpu_absence(const gpu::DeviceList& list) {
  if (!list.devices.empty()) return {};
  return list.reason.empty() ? "no GPU was found" : list.reason;
}

std::string gpu_absence(GpuBackend* backend) {
  if (backend == nullptr) return "this program computes on the CPU only";
  if (std::string absence = gpu_absence(backend->list()); !absence.empty()) return absence;
  return backend->unsupported_reason();
}

}  // namespace hvd::bench
