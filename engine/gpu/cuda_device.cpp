#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "engine/gpu/device.h"

namespace hvd::gpu {
namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string pci_bus_id(int index) {
  std::array<char, 32> text{};
  if (cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), index) == cudaSuccess) return text.data();
  static_cast<void>(cudaGetLastError());
  return {};
}

}  // namespace

DeviceList list_devices() {
  DeviceList list;
  cudaDriverGetVersion(&list.driver_version);
  cudaRuntimeGetVersion(&list.runtime_version);
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    list.reason = no_device_reason(list.driver_version, list.runtime_version, cudaGetErrorString(status));
    static_cast<void>(cudaGetLastError());  // clear the error: having no device is not a fault here
    return list;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    list.devices.push_back({i, properties.name, uuid_text(properties.uuid), properties.major, properties.minor,
                            properties.totalGlobalMem, properties.multiProcessorCount, count, pci_bus_id(i)});
  }
  if (list.devices.empty()) list.reason = "the driver shows no device (CUDA_VISIBLE_DEVICES?)";
  return list;
}

}  // namespace hvd::gpu
