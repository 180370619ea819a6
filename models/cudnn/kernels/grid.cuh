// Launching the functors of element.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/gpu/launch.cuh"
#include "models/cudnn/kernels/dispatch.h"

namespace hvd::models::cudnn::kernels {

using gpu::kThreads;
using gpu::launch_blocks;

// A parameter that a kernel only reads stays where the launch put it, instead of being copied by each thread. GPUs
// before 7.0 (P100) cannot leave it there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define HVD_GRID_CONSTANT
#else
#define HVD_GRID_CONSTANT __grid_constant__
#endif

inline constexpr std::int64_t kMostBlocks = 1 << 20;         // beyond that, threads take several elements
inline constexpr std::int64_t kMostBlocksPerList = 1 << 12;  // of several lists

inline unsigned blocks_for(std::int64_t count, std::int64_t most) {
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, most));
}

template <class Body>
__global__ void for_each_kernel(const HVD_GRID_CONSTANT Body body, std::int64_t count) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    body(i);
  }
}

/// body(i) for every i < count.
template <class Body>
void for_each(const Body& body, std::int64_t count, Stream stream, const char* kernel) {
  if (count <= 0) return;
  launch_blocks(kernel, for_each_kernel<Body>, blocks_for(count, kMostBlocks), stream, body, count);
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
  const dim3 blocks(blocks_for(longest, kMostBlocksPerList), static_cast<unsigned>(lists));
  launch_blocks(kernel, for_each_of_each_kernel<Body>, blocks, stream, body);
}

}  // namespace hvd::models::cudnn::kernels
