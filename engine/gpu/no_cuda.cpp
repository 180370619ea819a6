#include "engine/base/error.h"
#include "engine/gpu/device.h"
#include "engine/gpu/runtime.h"

namespace hvd::gpu {

DeviceList list_devices() {
  DeviceList list;
  list.reason = "this build has no CUDA (configure with HVD_WITH_CUDA=ON)";
  return list;
}

std::unique_ptr<GpuRuntime> make_cuda_runtime(int /*index*/) {
  throw Error(Errc::kUnsupported, "no GPU can be used: " + list_devices().reason);
}

}  // namespace hvd::gpu
