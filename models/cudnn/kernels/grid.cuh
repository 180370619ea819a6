// Launches the functors of element.h, with the element type and vector width that types and addresses known at run time
// select.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "engine/base/error.h"
#include "engine/gpu/launch.cuh"
#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

/// Calls `work` with a null pointer of the element type: work(static_cast<Half*>(nullptr)).
template <class Work>
void with_type(DataType type, const char* kernel, const Work& work) {
  switch (type) {
    case DataType::kF32: return work(static_cast<float*>(nullptr));
    case DataType::kF16: return work(static_cast<Half*>(nullptr));
    case DataType::kBF16: return work(static_cast<Bfloat*>(nullptr));
    default: break;
  }
  throw Error(Errc::kInvalidArgument,
              std::string("kernel ") + kernel + ": no elements of type " + std::string(hvd::name(type)));
}

template <int N>
struct Width {
  static constexpr int value = N;
};

inline constexpr std::int64_t kVectorBytes = 16;

/// Returns true if all these matrices can be read and written 16 bytes at a time.
inline bool is_wide(std::initializer_list<const Matrix*> matrices) {
  for (const Matrix* matrix : matrices) {
    if (matrix->data == nullptr) continue;
    const auto bytes = static_cast<std::int64_t>(size_of(matrix->type));
    if (matrix->channels * bytes % kVectorBytes != 0 || matrix->pitch * bytes % kVectorBytes != 0 ||
        reinterpret_cast<std::uintptr_t>(matrix->data) % kVectorBytes != 0) {
      return false;
    }
  }
  return true;
}

/// Calls `work` with the element type and the vector width, which is 16 bytes if `wide`, else one element.
template <class Work>
void with_vectors(DataType type, bool wide, const char* kernel, const Work& work) {
  with_type(type, kernel, [&](auto* element) {
    constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(*element));
    if (wide) {
      work(element, Width<kWide>());
    } else {
      work(element, Width<1>());
    }
  });
}

template <class Pointer>
using Pointee = std::remove_pointer_t<Pointer>;

using gpu::kThreads;
using gpu::launch_blocks;

// Threads read a __grid_constant__ parameter in place instead of copying it. GPUs of compute capability below 7.0
// (P100) cannot do this.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define HVD_GRID_CONSTANT
#else
#define HVD_GRID_CONSTANT __grid_constant__
#endif

inline constexpr std::int64_t kMaxBlocks = 1 << 20;         // for longer ranges, each thread takes several elements
inline constexpr std::int64_t kMaxBlocksPerList = 1 << 12;  // the limit for each list of for_each_of_each()

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

/// Calls body(i) for every i < count.
template <class Body>
void for_each(const Body& body, std::int64_t count, Stream stream, const char* kernel) {
  if (count <= 0) return;
  launch_blocks(kernel, for_each_kernel<Body>, blocks_for(count, kMaxBlocks), stream, body, count);
}

// Each thread of a row body takes kRowsPerThread rows, so that loading its channels, if the body has any, costs little.
// A thread takes fewer rows if there would be fewer than kBlocksToFill blocks. For bodies with channels, kBlocksToFill
// is the number of blocks that an H200 holds at one time, four on each multiprocessor: a matrix of 26 MB takes 14.5 us
// with these 528 blocks, but 16 us with 2048 blocks. Bodies without channels get several times as many blocks.
template <class Body>
inline constexpr bool kKeepsChannels = !std::is_same_v<typename Body::Channels, Nothing>;
template <class Body>
inline constexpr std::int64_t kRowsPerThread = kKeepsChannels<Body> ? 16 : Body::kRowsAtOnce;
template <class Body>
inline constexpr std::int64_t kBlocksToFill = kKeepsChannels<Body> ? 528 : 2048;

/// Each thread keeps its channels. All threads together take `rows_at_once` whole rows at a time.
template <class Body>
__global__ void __launch_bounds__(kThreads, Body::kBlocks)
    for_each_row_kernel(const HVD_GRID_CONSTANT Body body, std::int64_t rows, std::int64_t vectors,
                        std::int64_t rows_at_once) {
  constexpr int kAtOnce = Body::kRowsAtOnce;
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t first = quotient(thread, vectors);
  if (first >= rows_at_once || first >= rows) return;
  Place place{first, (thread - first * vectors) * Body::kWidth};
  const typename Body::Channels channels = body.channels(place.channel);
  while (place.row < rows) {
    typename Body::Row loaded[kAtOnce];
    HVD_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {  // past the end, reads `place.row` again: reads without a branch overlap
      const std::int64_t row = place.row + i * rows_at_once;
      loaded[i] = body.load(Place{row < rows ? row : place.row, place.channel});
    }
    HVD_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (place.row < rows) body.store(place, channels, loaded[i]);
      place.row += rows_at_once;
    }
  }
}

/// Runs a row body (element.h) on every vector of `rows` rows. `channels` must be a multiple of the body's width.
template <class Body>
void for_each_row(const Body& body, std::int64_t rows, std::int64_t channels, Stream stream, const char* kernel) {
  const std::int64_t vectors = channels / Body::kWidth;
  if (rows <= 0 || vectors <= 0) return;
  const auto blocks_of = [](std::int64_t threads) { return (threads + kThreads - 1) / kThreads; };
  const std::int64_t all = blocks_of(rows * vectors);
  const std::int64_t some = std::clamp(all / kRowsPerThread<Body>, kBlocksToFill<Body>, kMaxBlocks);
  const std::int64_t blocks = std::max(std::min(all, some), blocks_of(vectors));  // covers at least one whole row
  launch_blocks(kernel, for_each_row_kernel<Body>, static_cast<unsigned>(blocks), stream, body, rows, vectors,
                blocks * kThreads / vectors);
}

template <class Body>
__global__ void for_each_of_each_kernel(const HVD_GRID_CONSTANT Body body) {
  const std::int64_t count = body.count(blockIdx.y);
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    body(blockIdx.y, i);
  }
}

/// Calls body(list, i) for every list < lists and i < body.count(list). `longest`: the largest body.count(list).
template <class Body>
void for_each_of_each(const Body& body, std::size_t lists, std::int64_t longest, Stream stream, const char* kernel) {
  if (lists == 0 || longest <= 0) return;
  const dim3 blocks(blocks_for(longest, kMaxBlocksPerList), static_cast<unsigned>(lists));
  launch_blocks(kernel, for_each_of_each_kernel<Body>, blocks, stream, body);
}

}  // namespace hvd::models::cudnn::kernels
