#include "engine/gpu/kernels.h"

#include <fmt/format.h>

namespace hvd::gpu {

std::string kernels_refusal(const Device& device) {
  const int here = 10 * device.compute_major + device.compute_minor;
  if (here >= HVD_OLDEST_CUDA_ARCHITECTURE) return {};
  return fmt::format(
      "this build has kernels for compute capability {}.{} and newer, this GPU has {}.{}: build with "
      "-DCMAKE_CUDA_ARCHITECTURES={}",
      HVD_OLDEST_CUDA_ARCHITECTURE / 10, HVD_OLDEST_CUDA_ARCHITECTURE % 10, device.compute_major, device.compute_minor,
      here);
}

}  // namespace hvd::gpu
