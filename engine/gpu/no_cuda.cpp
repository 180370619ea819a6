#include "engine/gpu/device.h"

namespace hvd::gpu {

DeviceList list_devices() {
  DeviceList list;
  list.reason = "this build has no CUDA (configure with HVD_WITH_CUDA=ON)";
  return list;
}

}  // namespace hvd::gpu
