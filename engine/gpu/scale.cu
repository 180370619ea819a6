#include <algorithm>
#include <type_traits>

#include "engine/base/scale.h"
#include "engine/gpu/kernels.h"
#include "engine/gpu/launch.cuh"

namespace hvd::gpu {
namespace {

constexpr std::size_t kMaxBlocks = 1 << 20;  // for larger counts each thread scales several elements

template <class T>
__global__ void scale_kernel(T* values, std::size_t count, double factor) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    values[i] = scaled(values[i], factor);
  }
}

}  // namespace

void scale_on_gpu(std::byte* data, std::size_t count, DataType dtype, double factor, CUstream_st* stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMaxBlocks));
  with_floats(data, dtype, [&](auto* values) {
    launch_blocks("scale", scale_kernel<std::remove_pointer_t<decltype(values)>>, dim3(blocks), stream, values, count,
                  factor);
  });
}

}  // namespace hvd::gpu
