// Launching the functors of element.h.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "models/cudnn/kernels/dispatch.h"

namespace hvd::models::cudnn::kernels {

// A parameter that a kernel only reads stays where the launch put it, instead of being copied by each thread. GPUs
// before 7.0 (P100) cannot leave it there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define HVD_GRID_CONSTANT
#else
#define HVD_GRID_CONSTANT __grid_constant__
#endif

inline constexpr int kThreads = 256;
inline constexpr std::int64_t kMostBlocks = 1 << 20;  // beyond that, threads take several elements

inline void check_launch(const char* kernel) {
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    throw Error(Errc::kBackend, std::string("kernel ") + kernel + ": " + cudaGetErrorString(status));
  }
}

template <class Body>
__global__ void for_each_kernel(const HVD_GRID_CONSTANT Body body, std::int64_t count) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    body(i);
  }
}

template <class Body>
void for_each(const Body& body, std::int64_t count, Stream stream, const char* kernel) {
  if (count <= 0) return;
  const std::int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  for_each_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(body, count);
  check_launch(kernel);
}

template <class Body>
__global__ void for_each_of_each_kernel(const HVD_GRID_CONSTANT Body body) {
  const std::int64_t count = body.count(blockIdx.y);
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    body(blockIdx.y, i);
  }
}

/// body(list, i) for every i < body.count(list) of `lists` lists, the longest of which has `longest`.
template <class Body>
void for_each_of_each(const Body& body, std::size_t lists, std::int64_t longest, Stream stream, const char* kernel) {
  if (lists == 0 || longest <= 0) return;
  constexpr std::int64_t kMostBlocksPerList = 4096;
  const auto blocks = static_cast<unsigned>(std::min((longest + kThreads - 1) / kThreads, kMostBlocksPerList));
  for_each_of_each_kernel<<<dim3(blocks, static_cast<unsigned>(lists)), kThreads, 0, stream>>>(body);
  check_launch(kernel);
}

}  // namespace hvd::models::cudnn::kernels
