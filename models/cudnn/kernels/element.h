// Functors that do the work of our kernels on one element or one vector. Each functor is called for every index of a
// range, in any order. Functors compile for the GPU (grid.cuh launches them) and for the host, where tests call
// functors in a loop and check the results. The functors of a .cu file are in its header *_element.h. This header has
// the code that all functors share. Long sums are not functors and are in the .cu files.
//
// Most functors are row bodies, which process the vectors of a matrix. A thread keeps its channels and goes from row to
// row.
//   kWidth, kRowsAtOnce        channels of a vector, and rows that a thread has in flight
//   kBlocks                    blocks that a multiprocessor must hold at one time, which bounds a thread's registers
//   Channels channels(channel) loads what all rows share, once per thread
//   Row load(place)            reads one row; all rows in flight are read before the first row is written
//   store(place, channels, row) computes and writes one row
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/base/float16.h"
#include "models/cudnn/kernels/kernels.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define HVD_HOST_DEVICE __host__ __device__
#else
#define HVD_HOST_DEVICE
#endif
#ifdef __CUDA_ARCH__
#define HVD_UNROLL _Pragma("unroll")
#else
#define HVD_UNROLL
#endif

namespace hvd::models::cudnn::kernels {

// ---- Element types ----

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

HVD_HOST_DEVICE inline float to_float(float value) { return value; }
HVD_HOST_DEVICE inline float to_float(Half value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  return fp16_to_float(value.bits);
#endif
}
HVD_HOST_DEVICE inline float to_float(Bfloat value) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
#else
  return bf16_to_float(value.bits);
#endif
}

template <class T>
HVD_HOST_DEVICE T from_float(float value);
template <>
HVD_HOST_DEVICE inline float from_float<float>(float value) {
  return value;
}
template <>
HVD_HOST_DEVICE inline Half from_float<Half>(float value) {
#ifdef __CUDA_ARCH__
  return {__half_as_ushort(__float2half_rn(value))};
#else
  return {float_to_fp16(value)};
#endif
}
template <>
HVD_HOST_DEVICE inline Bfloat from_float<Bfloat>(float value) {
#ifdef __CUDA_ARCH__
  // CUDA 12.0 has no other conversion for GPUs of compute capability below 8.0.
  return {static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(value)).x};
#else
  return {float_to_bf16(value)};
#endif
}

/// V neighbouring elements. load() and store() move a vector of 8 or 16 bytes in one access.
template <class T, int V>
struct alignas(V * sizeof(T)) Vector {
  T at[V];
};

// nvcc 13 splits one access to a vector of 8-bit or 16-bit elements into up to seven accesses. A load of 32-bit words
// stays one access. A store stays one access only if the compiler cannot see the 32-bit words, so store() has inline
// assembly.
template <class T, int V>
HVD_HOST_DEVICE Vector<T, V> load(const void* data, std::int64_t offset) {
  const T* const from = static_cast<const T*>(data) + offset;
#ifdef __CUDA_ARCH__
  using Words = std::conditional_t<V * sizeof(T) == sizeof(uint4), uint4, uint2>;
  if constexpr (V * sizeof(T) == sizeof(Words)) {
    const Words words = *reinterpret_cast<const Words*>(from);
    Vector<T, V> value;
    memcpy(&value, &words, sizeof words);
    return value;
  }
#endif
  return *reinterpret_cast<const Vector<T, V>*>(from);
}
template <class T, int V>
HVD_HOST_DEVICE void store(void* data, std::int64_t offset, const Vector<T, V>& value) {
  T* const to = static_cast<T*>(data) + offset;
#ifdef __CUDA_ARCH__
  using Words = std::conditional_t<V * sizeof(T) == sizeof(uint4), uint4, uint2>;
  if constexpr (V * sizeof(T) == sizeof(Words)) {
    Words words;
    memcpy(&words, &value, sizeof words);
    if constexpr (sizeof(Words) == sizeof(uint4)) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
                   "r"(words.w)
                   : "memory");
    } else {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words.x), "r"(words.y) : "memory");
    }
    return;
  }
#endif
  *reinterpret_cast<Vector<T, V>*>(to) = value;
}

/// Returns a / b for numbers that are not negative. Divides in 32 bits if both numbers fit, which is several times
/// faster than in 64 bits.
HVD_HOST_DEVICE inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// The position of a vector in a matrix: its row and its first channel.
struct Place {
  std::int64_t row, channel;
  HVD_HOST_DEVICE std::int64_t in(const Matrix& matrix) const { return row * matrix.pitch + channel; }
};

// ---- Parts of row bodies ----

/// Loads V neighbouring fp32 elements, four at a time if V allows, because the L1 cache is fastest that way.
template <int V>
HVD_HOST_DEVICE void load_floats(const float* from, std::int64_t channel, float (&to)[V]) {
  constexpr int kAtOnce = V % 4 == 0 ? 4 : 1;
  for (int k = 0; k < V; k += kAtOnce) {
    const auto some = load<float, kAtOnce>(from, channel + k);
    for (int j = 0; j < kAtOnce; ++j) to[k + j] = some.at[j];
  }
}

/// A batch norm on V neighbouring channels. Forward and backward both use this code, so that backward zeroes exactly
/// the elements that the rectifier after the norm has zeroed.
template <int V>
struct NormAt {
  float mean[V], scale[V], beta[V];

  NormAt() = default;
  HVD_HOST_DEVICE NormAt(const Norm& norm, std::int64_t channel) {
    float gamma[V];
    load_floats<V>(norm.mean, channel, mean);
    load_floats<V>(norm.inv_std, channel, scale);
    load_floats<V>(norm.gamma, channel, gamma);
    load_floats<V>(norm.beta, channel, beta);
    for (int k = 0; k < V; ++k) scale[k] *= gamma[k];
  }
  HVD_HOST_DEVICE float operator()(int k, float x) const { return (x - mean[k]) * scale[k] + beta[k]; }
};

/// The type Channels or Row of a row body that needs no data per thread or per row.
struct Nothing {};

/// Adds V elements of `other` to `value`.
template <class T, int V>
HVD_HOST_DEVICE void add(const Vector<T, V>& other, float (&value)[V]) {
  for (int k = 0; k < V; ++k) value[k] += to_float(other.at[k]);
}

/// A rectifier's backward: sets `value` to zero where `test`, or the batch norm of `test`, is not positive.
template <class T, int V>
HVD_HOST_DEVICE void mask(const Vector<T, V>& test, float (&value)[V]) {
  for (int k = 0; k < V; ++k) value[k] = to_float(test.at[k]) > 0 ? value[k] : 0;
}
template <class T, int V>
HVD_HOST_DEVICE void mask(const Vector<T, V>& test, const NormAt<V>& norm, float (&value)[V]) {
  for (int k = 0; k < V; ++k) value[k] = norm(k, to_float(test.at[k])) > 0 ? value[k] : 0;
}

/// Applies the epilogue of a diff to V values of one row.
template <class T, int V>
HVD_HOST_DEVICE void finish(const Epilogue& epilogue, const Place& place, float (&value)[V]) {
  if (epilogue.add.data != nullptr) add(load<T, V>(epilogue.add.data, place.in(epilogue.add)), value);
  if (epilogue.test.data == nullptr) return;
  const auto test = load<T, V>(epilogue.test.data, place.in(epilogue.test));
  if (epilogue.test_norm.mean == nullptr) {
    mask(test, value);
  } else {
    mask(test, NormAt<V>(epilogue.test_norm, place.channel), value);
  }
}

template <class T, int V>
HVD_HOST_DEVICE void store_row(const Matrix& to, const Place& place, const float (&value)[V]) {
  Vector<T, V> out;
  for (int k = 0; k < V; ++k) out.at[k] = from_float<T>(value[k]);
  store<T, V>(to.data, place.in(to), out);
}

}  // namespace hvd::models::cudnn::kernels
