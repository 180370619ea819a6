#include "engine/gpu/device.h"

namespace hvd::gpu {
namespace {

// Turns 1000 * major + 10 * minor into "major.minor", for example "13.0".
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string no_device_reason(int driver_version, int runtime_version, const std::string& words) {
  if (driver_version == 0) return "no NVIDIA driver is loaded";
  if (driver_version / 1000 < runtime_version / 1000) {
    return "the NVIDIA driver supports CUDA " + version_text(driver_version) + ", but this program needs " +
           version_text(runtime_version) + ": install a newer driver, or a program built with an older CUDA";
  }
  return words;
}

}  // namespace hvd::gpu
