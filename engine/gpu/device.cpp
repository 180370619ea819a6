#include "engine/gpu/device.h"

#include <fmt/format.h>

namespace hvd::gpu {
namespace {

// Turns 1000 * major + 10 * minor into "major.minor", for example "13.0".
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string no_device_reason(int driver_version, int runtime_version, const std::string& words) {
  if (driver_version == 0) {
    return fmt::format("no NVIDIA driver is loaded (CUDA {} needs one; a container gets the host's by --gpus all or --nv)",
                       version_text(runtime_version));
  }
  if (driver_version / 1000 < runtime_version / 1000) {
    return fmt::format(
        "the NVIDIA driver supports CUDA {}, but this program needs {}: install a newer driver, or a program built "
        "with an older CUDA",
        version_text(driver_version), version_text(runtime_version));
  }
  return words;
}

}  // namespace hvd::gpu
