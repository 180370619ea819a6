#include <cuda_runtime_api.h>

#include "engine/gpu/device.h"
#include "tests/cudnn/kernels/kernel_memory.h"

namespace hvd::models::cudnn::kernels {
namespace {

void must(cudaError_t status) { EXPECT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

}  // namespace

std::string no_device() {
  const gpu::DeviceList list = gpu::list_devices();
  return list.devices.empty() ? list.reason : "";
}
void* device_allocate(std::size_t bytes) {
  void* data = nullptr;
  must(cudaMalloc(&data, bytes));
  return data;
}
void device_free(void* data) noexcept { cudaFree(data); }
void device_fill(void* to, int value, std::size_t bytes) { must(cudaMemset(to, value, bytes)); }
void to_device(void* to, const void* from, std::size_t bytes) {
  must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
void from_device(void* to, const void* from, std::size_t bytes) {
  must(cudaDeviceSynchronize());
  must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace hvd::models::cudnn::kernels
