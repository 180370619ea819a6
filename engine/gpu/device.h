// Lists the NVIDIA GPUs that this process can see. Never fails: on a machine without a driver, or in a build without
// CUDA, the list is empty and `reason` says why.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace hvd::gpu {

struct Device {
  int index = 0;
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-..." as nvidia-smi prints it
  int compute_major = 0, compute_minor = 0;
  std::size_t memory_bytes = 0;
  int multiprocessors = 0;
  int visible = 1;              ///< number of GPUs that this process sees, including this one
  std::string pci_bus_id = {};  ///< "0000:1B:00.0"; empty: unknown
};

struct DeviceList {
  std::vector<Device> devices;
  std::string reason;       ///< why there are no devices; empty if there are devices
  int driver_version = 0;   ///< CUDA version the driver supports, 1000 * major + 10 * minor; 0: no driver
  int runtime_version = 0;  ///< CUDA version of this build; 0: built without CUDA
};

/// Any thread may call this function. Source: CUDA Runtime API, device management.
DeviceList list_devices();

/// Returns the reason why there are no devices. Versions are as in DeviceList; `words` is the CUDA runtime's own error
/// text, which is returned if the versions do not explain the absence. Pure.
std::string no_device_reason(int driver_version, int runtime_version, const std::string& words);

}  // namespace hvd::gpu
