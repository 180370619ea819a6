// Functors that do the work of our kernels on one element or one vector. Each functor is called for every index of a
// range, in any order. They compile for the GPU (grid.cuh launches them) and for the host, where tests call them in a
// loop and check the results. Pools are in pool_element.h, batch norms in norm_element.h, long sums in the .cu files.
//
// Most functors are row bodies, which process the vectors of a matrix. A thread keeps its channels and visits rows.
//   kWidth, kRowsAtOnce        channels of a vector, and rows that a thread has in flight
//   kBlocks                    blocks that a multiprocessor must hold at one time, which bounds a thread's registers
//   Channels channels(channel) loads what all rows share, once per thread
//   Row load(place)            reads one row; all rows in flight are read before the first is written
//   store(place, channels, row) computes and writes one row
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "engine/base/float16.h"
#include "engine/base/philox.h"
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
  // CUDA 12.0 has no other conversion for GPUs before 8.0.
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
// stays one access. A store stays one only if the compiler cannot see the words, so store() has inline assembly.
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

/// Returns a / b for numbers that are not negative. Divides in 32 bits if both fit: several times faster than 64.
HVD_HOST_DEVICE inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// The position of a vector in a matrix: its row and its first channel.
struct Place {
  std::int64_t row, channel;
  HVD_HOST_DEVICE std::int64_t in(const Matrix& matrix) const { return row * matrix.pitch + channel; }
};

// ---- Pieces ----

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

/// Adds one number to the hash that names a dropout's random stream (engine/base/hash.h).
HVD_HOST_DEVICE inline std::uint64_t hash_number(std::uint64_t state, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) state = (state ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3ULL;
  return state;
}

/// Computes the factor of dropout for element `feature` of row `row`: 0 or 1 / (1 - rate).
struct DropoutBody {
  std::uint64_t seed, hash;  ///< hash of "dropout" and the layer's stream
  std::uint64_t dropped_below;
  float scale;
  std::int64_t rows_per_sample;
  const std::uint64_t *step, *first_sample;
  std::int64_t features;  ///< number of features of a row

  HVD_HOST_DEVICE float factor(std::int64_t row, std::int64_t feature) const {
    const Philox generator(seed, hash_number(hash, *step));
    const std::uint64_t global_row =
        *first_sample * static_cast<std::uint64_t>(rows_per_sample) + static_cast<std::uint64_t>(row);
    const std::uint64_t index = global_row * static_cast<std::uint64_t>(features) + static_cast<std::uint64_t>(feature);
    return generator.block(index / 4)[index % 4] >= dropped_below ? scale : 0.0F;
  }
};

/// Adds V elements of `other` to `value`.
template <class T, int V>
HVD_HOST_DEVICE void add(const Vector<T, V>& other, float (&value)[V]) {
  for (int k = 0; k < V; ++k) value[k] += to_float(other.at[k]);
}

/// A rectifier's backward: sets `value` to zero where `test`, or the norm of `test`, is not positive.
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

// ---- Pointwise ----

/// Channels or Row of a row body that stores nothing there.
struct Nothing {};

/// Computes any Pointwise. Loads the channels' vectors for each row, because these are too many for registers.
template <class T, int V>
struct PointwiseBody {
  Pointwise work;
  DropoutBody dropout;
  static constexpr int kWidth = V, kRowsAtOnce = 1, kBlocks = 4;
  using Channels = Nothing;
  using Row = Nothing;

  HVD_HOST_DEVICE Channels channels(std::int64_t /*channel*/) const { return {}; }
  HVD_HOST_DEVICE Row load(const Place& /*place*/) const { return {}; }
  HVD_HOST_DEVICE void store(const Place& place, const Channels& /*channels*/, const Row& /*row*/) const {
    float value[V] = {};
    for (int input = 0; input < work.inputs; ++input) {
      const auto x = kernels::load<T, V>(work.input[input].data, place.in(work.input[input]));
      if (work.norm[input].mean == nullptr) {
        add(x, value);
        continue;
      }
      const NormAt<V> norm(work.norm[input], place.channel);
      for (int k = 0; k < V; ++k) value[k] += norm(k, to_float(x.at[k]));
    }
    if (work.bias != nullptr) add(kernels::load<T, V>(work.bias, place.channel), value);
    for (int k = 0; k < V; ++k) {
      if (work.relu) value[k] = value[k] > 0 ? value[k] : 0;
      if (work.dropout.used) value[k] *= dropout.factor(place.row, place.channel + k);
    }
    finish<T, V>({.add = {}, .test = work.test, .test_norm = work.test_norm}, place, value);
    store_row<T, V>(work.out, place, value);
  }
};

/// Computes the kinds of Pointwise that networks need most: one or two inputs, batch norms on the first kNorms inputs,
/// with or without a rectifier. Supports `test` only without batch norms: both together take too many registers.
template <class T, int V, int kInputs, int kNorms>
struct NormSumBody {
  Matrix out, input[kInputs], test;
  Norm norm[kNorms == 0 ? 1 : kNorms];
  bool relu;
  static constexpr int kWidth = V, kRowsAtOnce = 4 / kInputs, kBlocks = kNorms < 2 ? 4 : 3;
  static constexpr bool kTakesTest = kNorms == 0;
  struct Channels {
    NormAt<V> norm[kNorms == 0 ? 1 : kNorms];
  };
  struct Row {
    Vector<T, V> input[kInputs], test;
  };

  /// is_norm_sum(work) must be true (pointwise.cu).
  explicit NormSumBody(const Pointwise& work) : out(work.out), test(work.test), relu(work.relu) {
    for (int i = 0; i < kInputs; ++i) input[i] = work.input[i];
    for (int i = 0; i < kNorms; ++i) norm[i] = work.norm[i];
  }

  HVD_HOST_DEVICE Channels channels(std::int64_t channel) const {
    Channels made;
    HVD_UNROLL
    for (int i = 0; i < kNorms; ++i) made.norm[i] = NormAt<V>(norm[i], channel);
    return made;
  }
  HVD_HOST_DEVICE Row load(const Place& place) const {
    Row row;
    HVD_UNROLL
    for (int i = 0; i < kInputs; ++i) row.input[i] = kernels::load<T, V>(input[i].data, place.in(input[i]));
    if (kTakesTest && test.data != nullptr) row.test = kernels::load<T, V>(test.data, place.in(test));
    return row;
  }
  HVD_HOST_DEVICE void store(const Place& place, const Channels& channels, const Row& row) const {
    float value[V] = {};
    HVD_UNROLL
    for (int i = 0; i < kInputs; ++i) {
      for (int k = 0; k < V; ++k) {
        const float x = to_float(row.input[i].at[k]);
        value[k] += i < kNorms ? channels.norm[i < kNorms ? i : 0](k, x) : x;
      }
    }
    if (relu) {
      for (int k = 0; k < V; ++k) value[k] = value[k] > 0 ? value[k] : 0;
    }
    if (kTakesTest && test.data != nullptr) mask(row.test, value);
    store_row<T, V>(out, place, value);
  }
};

template <class T, int V>
struct CopyMatrixBody {
  Matrix from, to;
  static constexpr int kWidth = V, kRowsAtOnce = 4, kBlocks = 4;
  using Channels = Nothing;
  using Row = Vector<T, V>;

  HVD_HOST_DEVICE Channels channels(std::int64_t /*channel*/) const { return {}; }
  HVD_HOST_DEVICE Row load(const Place& place) const { return kernels::load<T, V>(from.data, place.in(from)); }
  HVD_HOST_DEVICE void store(const Place& place, const Channels& /*channels*/, const Row& row) const {
    kernels::store<T, V>(to.data, place.in(to), row);
  }
};

template <class From, class To>
struct ConvertMatrixBody {
  Matrix from, to;
  static constexpr int kWidth = 1, kRowsAtOnce = 4, kBlocks = 4;
  using Channels = Nothing;
  using Row = float;

  HVD_HOST_DEVICE Channels channels(std::int64_t /*channel*/) const { return {}; }
  HVD_HOST_DEVICE Row load(const Place& place) const {
    return to_float(static_cast<const From*>(from.data)[place.in(from)]);
  }
  HVD_HOST_DEVICE void store(const Place& place, const Channels& /*channels*/, Row row) const {
    static_cast<To*>(to.data)[place.in(to)] = from_float<To>(row);
  }
};

// ---- Loss, update, input ----

template <class T>
struct SoftmaxCrossEntropyBackwardBody {
  const float* probabilities;
  const std::int32_t* labels;
  float factor;  ///< weight / rows
  const float* loss_scale;
  Matrix dlogits;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = quotient(i, dlogits.channels);
    const Place place{row, i - row * dlogits.channels};
    const float hot = labels[place.row] == place.channel ? 1.0F : 0.0F;
    const float value[1] = {(probabilities[i] - hot) * factor * *loss_scale};
    store_row<T, 1>(dlogits, place, value);
  }
};

/// Updates four elements, which belong to one parameter, because slots are multiples of 64 elements.
template <class Gradient, class Copied>
struct SgdBody {
  Sgd work;
  static constexpr int kVector = 4;
  static constexpr std::int64_t kDecayBlock = 64;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    if (work.loss_scale->overflow != 0) return;
    const StepScalars scalars = *work.scalars;
    const float gradient_scale = scalars.gradient_scale / work.loss_scale->scale;
    const std::int64_t at = i * kVector;
    auto w = load<float, kVector>(work.weights, at);
    auto m = load<float, kVector>(work.momentum, at);
    const auto g = load<Gradient, kVector>(work.gradients, at);
    const float decay = work.decays[at / kDecayBlock] != 0 ? scalars.weight_decay : 0.0F;
    Vector<Copied, kVector> copied;
    for (int k = 0; k < kVector; ++k) {
      m.at[k] = scalars.momentum * m.at[k] + gradient_scale * to_float(g.at[k]) + decay * w.at[k];
      w.at[k] -= scalars.learning_rate * m.at[k];
      copied.at[k] = from_float<Copied>(w.at[k]);
    }
    store<float, kVector>(work.weights, at, w);
    store<float, kVector>(work.momentum, at, m);
    if (work.copy != nullptr) store<Copied, kVector>(work.copy, at, copied);
  }
};

template <class T>
struct FindOverflowBody {
  const T* gradients;
  LossScale* loss_scale;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const auto g = load<T, kVector>(gradients, i * kVector);
    for (int k = 0; k < kVector; ++k) {
      const float value = to_float(g.at[k]);
      if (!(value - value == 0.0F)) loss_scale->overflow = 1;  // all threads write the same value
    }
  }
};

struct AdjustLossScaleBody {
  LossScale* loss_scale;
  std::int32_t growth_interval;
  static constexpr float kLargest = 0x1.0p24F;  // dlogits, up to scale / batch size, must stay in fp16's range

  HVD_HOST_DEVICE void operator()(std::int64_t /*only*/) const {
    LossScale now = *loss_scale;
    if (now.overflow != 0) {
      now.scale = now.scale > 1 ? now.scale / 2 : now.scale;
      now.good_steps = 0;
      ++now.skipped;
    } else if (++now.good_steps == growth_interval) {
      now.scale = now.scale < kLargest ? now.scale * 2 : now.scale;
      now.good_steps = 0;
    }
    now.overflow = 0;
    *loss_scale = now;
  }
};

/// Makes four elements of an image from one block of random words, as models/normal.cpp does.
template <class T>
struct SyntheticImagesBody {
  std::uint64_t seed, stream;
  const std::uint64_t* first_sample;
  std::int64_t image_elements, count;
  T* images;
  std::int64_t channels = 1, pitch = 1;  ///< elements per pixel, and elements from one pixel to the next

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    // Blocks are counted from the start of the data set, so a batch may begin inside a block.
    const std::uint64_t first = *first_sample * static_cast<std::uint64_t>(image_elements);
    const std::uint64_t block = first / 4 + static_cast<std::uint64_t>(i);
    const auto words = Philox(seed, stream).block(block);
    for (int pair = 0; pair < 4; pair += 2) {
      float u = (static_cast<float>(words[static_cast<std::size_t>(pair)]) + 1.0F) * 0x1.0p-32F;
      u = u < 1.0F ? u : 1.0F;
      const float angle = 6.2831853F * (static_cast<float>(words[static_cast<std::size_t>(pair) + 1]) * 0x1.0p-32F);
      const float radius = std::sqrt(-2.0F * std::log(u));
      const float values[2] = {radius * std::cos(angle), radius * std::sin(angle)};
      for (int k = 0; k < 2; ++k) {
        const auto at = static_cast<std::int64_t>(block * 4 + static_cast<std::uint64_t>(pair + k) - first);
        if (at >= 0 && at < count) images[at / channels * pitch + at % channels] = from_float<T>(values[k]);
      }
    }
  }
};

struct SyntheticLabelsBody {
  std::uint64_t seed, stream;
  const std::uint64_t* first_sample;
  std::int64_t classes;
  std::int32_t* labels;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::uint64_t word = Philox(seed, stream).block(*first_sample + static_cast<std::uint64_t>(i))[0];
    labels[i] = static_cast<std::int32_t>((word * static_cast<std::uint64_t>(classes)) >> 32);
  }
};

}  // namespace hvd::models::cudnn::kernels
