#include "engine/base/error.h"
#include "tests/comm/shared_gpu.h"

namespace hvd::test {

std::unique_ptr<PeerMemory> make_cuda_ipc(gpu::GpuRuntime& /*runtime*/) {
  throw Error(Errc::kUnsupported, "this build has no CUDA, and so no CUDA IPC");
}

}  // namespace hvd::test
