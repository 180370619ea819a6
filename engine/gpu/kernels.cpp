#include "engine/gpu/kernels.h"

namespace hvd::gpu {

std::string kernels_refusal(const Device& device) {
  const int here = 10 * device.compute_major + device.compute_minor;
  if (here >= HVD_OLDEST_CUDA_ARCHITECTURE) return {};
  return "this build has kernels for compute capability " + std::to_string(HVD_OLDEST_CUDA_ARCHITECTURE / 10) + "." +
         std::to_string(HVD_OLDEST_CUDA_ARCHITECTURE % 10) + " and newer, this GPU has " +
         std::to_string(device.compute_major) + "." + std::to_string(device.compute_minor) +
         ": build with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(here);
}

}  // namespace hvd::gpu
