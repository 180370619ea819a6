// Opens device memory of another process with CUDA IPC handles.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "tests/comm/shared_gpu.h"

namespace hvd::test {
namespace {

class CudaIpc final : public PeerMemory {
 public:
  explicit CudaIpc(gpu::GpuRuntime& runtime) : runtime_(runtime) {}

  [[nodiscard]] comm::Bytes show(std::span<std::byte> memory) override {
    cudaIpcMemHandle_t handle{};
    check(cudaIpcGetMemHandle(&handle, memory.data()), "cudaIpcGetMemHandle");
    comm::Bytes shown(sizeof handle);
    std::memcpy(shown.data(), &handle, sizeof handle);
    return shown;
  }
  [[nodiscard]] const std::byte* open(const comm::Bytes& shown) override {
    cudaIpcMemHandle_t handle{};
    if (shown.size() != sizeof handle) throw Error(Errc::kMismatch, "a peer's handle of device memory is cut short");
    std::memcpy(&handle, shown.data(), sizeof handle);
    void* memory = nullptr;
    check(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    return static_cast<const std::byte*>(memory);
  }
  void close(const std::byte* memory) noexcept override {
    static_cast<void>(cudaIpcCloseMemHandle(const_cast<std::byte*>(memory)));
  }

 private:
  void check(cudaError_t status, const char* call) const {
    if (status == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());  // clears the error; otherwise a later call would report it
    throw Error(Errc::kBackend, runtime_.label() + ": " + call + ": " + cudaGetErrorString(status) +
                                    "; CUDA IPC needs Linux and, in containers, ranks that share the host's IPC and "
                                    "process namespaces");
  }

  gpu::GpuRuntime& runtime_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_cuda_ipc(gpu::GpuRuntime& runtime) {
  runtime.make_current();
  return std::make_unique<CudaIpc>(runtime);
}

}  // namespace hvd::test
