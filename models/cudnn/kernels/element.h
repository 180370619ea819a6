// The work of our kernels on one element or one vector of elements: functors called with an index, for every index of
// a range, in any order. They compile for the GPU (grid.cuh launches them) and for the host, where the tests call them
// in a loop and compare with the reference. Sums over many elements are in the .cu files.
#pragma once

#include <cmath>
#include <cstdint>

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
  return {static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(value)).x};  // CUDA 12.0 has no more for GPUs before 8.0
#else
  return {float_to_bf16(value)};
#endif
}

/// V neighbouring elements, moved as one where V * sizeof(T) is 16.
template <class T, int V>
struct alignas(V * sizeof(T)) Vector {
  T at[V];
};

template <class T, int V>
HVD_HOST_DEVICE Vector<T, V> load(const void* data, std::int64_t offset) {
  return *reinterpret_cast<const Vector<T, V>*>(static_cast<const T*>(data) + offset);
}
template <class T, int V>
HVD_HOST_DEVICE void store(void* data, std::int64_t offset, const Vector<T, V>& value) {
  *reinterpret_cast<Vector<T, V>*>(static_cast<T*>(data) + offset) = value;
}

/// Row and first channel of vector `i` of a matrix.
template <int V>
struct Place {
  std::int64_t row, channel;
  HVD_HOST_DEVICE Place(std::int64_t i, std::int64_t channels) {
    const std::int64_t per_row = channels / V;
    if (i <= 0xffffffff) {  // 64-bit division takes several times as long, and most matrices are smaller
      const auto short_row = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(per_row);
      row = short_row;
    } else {
      row = i / per_row;
    }
    channel = (i - row * per_row) * V;
  }
  HVD_HOST_DEVICE std::int64_t in(const Matrix& matrix) const { return row * matrix.pitch + channel; }
};

// ---- Pieces ----

/// V neighbouring elements of a vector of fp32: four at a time, because that is what the first level cache is fast at.
template <int V>
HVD_HOST_DEVICE void load_floats(const float* from, std::int64_t channel, float (&to)[V]) {
  constexpr int kAtOnce = V % 4 == 0 ? 4 : 1;
  for (int k = 0; k < V; k += kAtOnce) {
    const auto some = load<float, kAtOnce>(from, channel + k);
    for (int j = 0; j < kAtOnce; ++j) to[k + j] = some.at[j];
  }
}

/// A batch norm, or none, on V neighbouring channels.
template <int V>
struct NormAt {
  bool used;
  float mean[V], inv_std[V], gamma[V], beta[V];

  HVD_HOST_DEVICE NormAt(const Norm& norm, std::int64_t channel) : used(norm.mean != nullptr) {
    if (!used) return;
    load_floats<V>(norm.mean, channel, mean);
    load_floats<V>(norm.inv_std, channel, inv_std);
    load_floats<V>(norm.gamma, channel, gamma);
    load_floats<V>(norm.beta, channel, beta);
  }
  HVD_HOST_DEVICE float operator()(int k, float x) const {
    return used ? (x - mean[k]) * inv_std[k] * gamma[k] + beta[k] : x;
  }
};

/// Continues the hash that names a dropout's random stream (engine/base/hash.h) by one number.
HVD_HOST_DEVICE inline std::uint64_t hash_number(std::uint64_t state, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) state = (state ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3ULL;
  return state;
}

/// What dropout multiplies element `feature` of row `row` by: 0 or 1 / (1 - rate).
struct DropoutBody {
  std::uint64_t seed, hash;  ///< hash of "dropout" and the layer's stream
  std::uint64_t dropped_below;
  float scale;
  std::int64_t rows_per_sample;
  const std::uint64_t *step, *first_sample;
  std::int64_t features;  ///< of a row

  HVD_HOST_DEVICE float factor(std::int64_t row, std::int64_t feature) const {
    const Philox generator(seed, hash_number(hash, *step));
    const std::uint64_t global_row =
        *first_sample * static_cast<std::uint64_t>(rows_per_sample) + static_cast<std::uint64_t>(row);
    const std::uint64_t index = global_row * static_cast<std::uint64_t>(features) + static_cast<std::uint64_t>(feature);
    return generator.block(index / 4)[index % 4] >= dropped_below ? scale : 0.0F;
  }
};

/// The epilogue of a diff, on V values of one row.
template <class T, int V>
HVD_HOST_DEVICE void finish(const Epilogue& epilogue, const Place<V>& place, float (&value)[V]) {
  if (epilogue.add.data != nullptr) {
    const auto other = load<T, V>(epilogue.add.data, place.in(epilogue.add));
    for (int k = 0; k < V; ++k) value[k] += to_float(other.at[k]);
  }
  if (epilogue.test.data != nullptr) {
    const auto test = load<T, V>(epilogue.test.data, place.in(epilogue.test));
    const NormAt<V> norm(epilogue.test_norm, place.channel);
    for (int k = 0; k < V; ++k) {
      if (!(norm(k, to_float(test.at[k])) > 0)) value[k] = 0;
    }
  }
}

template <class T, int V>
HVD_HOST_DEVICE void store_row(const Matrix& to, const Place<V>& place, const float (&value)[V]) {
  Vector<T, V> out;
  for (int k = 0; k < V; ++k) out.at[k] = from_float<T>(value[k]);
  store<T, V>(to.data, place.in(to), out);
}

// ---- Pointwise ----

template <class T, int V>
struct PointwiseBody {
  Pointwise work;
  DropoutBody dropout;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, work.out.channels);
    float value[V] = {};
    for (int input = 0; input < work.inputs; ++input) {
      const auto x = load<T, V>(work.input[input].data, place.in(work.input[input]));
      const NormAt<V> norm(work.norm[input], place.channel);
      for (int k = 0; k < V; ++k) value[k] += norm(k, to_float(x.at[k]));
    }
    if (work.bias != nullptr) {
      const auto bias = load<T, V>(work.bias, place.channel);
      for (int k = 0; k < V; ++k) value[k] += to_float(bias.at[k]);
    }
    for (int k = 0; k < V; ++k) {
      if (work.relu) value[k] = value[k] > 0 ? value[k] : 0;
      if (work.dropout.used) value[k] *= dropout.factor(place.row, place.channel + k);
    }
    finish<T, V>({.add = {}, .test = work.test, .test_norm = work.test_norm}, place, value);
    store_row<T, V>(work.out, place, value);
  }
};

template <class T, int V>
struct CopyMatrixBody {
  Matrix from, to;
  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, to.channels);
    store<T, V>(to.data, place.in(to), load<T, V>(from.data, place.in(from)));
  }
};

// ---- Pools ----

/// Row of an image's matrix, or -1 on padding.
HVD_HOST_DEVICE inline std::int64_t row_of(const Image& image, std::int64_t n, std::int64_t h, std::int64_t w) {
  if (h < 0 || w < 0 || h >= image.h || w >= image.w) return -1;
  return (n * image.h + h) * image.w + w;
}

struct Pixel {
  std::int64_t n, h, w;
  HVD_HOST_DEVICE Pixel(const Image& image, std::int64_t row)
      : n(row / (image.h * image.w)), h(row / image.w % image.h), w(row % image.w) {}
};

template <class T, int V>
struct MaxPoolBody {
  Window window;
  Image x, y;
  std::uint8_t* where;  // no gaps

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, y.matrix.channels);
    const Pixel at(y, place.row);
    float best[V] = {};
    Vector<std::uint8_t, V> index{};
    bool first = true;
    for (int kh = 0; kh < window.kernel_h; ++kh) {
      for (int kw = 0; kw < window.kernel_w; ++kw) {
        const std::int64_t row = row_of(x, at.n, at.h * window.stride_h - window.pad_top + kh,
                                        at.w * window.stride_w - window.pad_left + kw);
        if (row < 0) continue;
        const auto value = load<T, V>(x.matrix.data, row * x.matrix.pitch + place.channel);
        for (int k = 0; k < V; ++k) {
          const float v = to_float(value.at[k]);
          if (!first && !(v > best[k])) continue;
          best[k] = v;
          index.at[k] = static_cast<std::uint8_t>(kh * window.kernel_w + kw);
        }
        first = false;
      }
    }
    store_row<T, V>(y.matrix, place, best);
    store<std::uint8_t, V>(where, place.row * y.matrix.channels + place.channel, index);
  }
};

/// First and last output position, along one axis, whose window covers input position `at`.
struct Cover {
  std::int64_t first, last;
  HVD_HOST_DEVICE Cover(std::int64_t at, int kernel, int stride, int pad, std::int64_t outputs) {
    const std::int64_t from = at + pad - kernel + 1;
    first = from <= 0 ? 0 : (from + stride - 1) / stride;
    last = (at + pad) / stride;
    if (last >= outputs) last = outputs - 1;
  }
};

template <class T, int V>
struct MaxPoolBackwardBody {
  Window window;
  const std::uint8_t* where;
  Image dy, dx;
  Matrix pooled;  ///< data == nullptr: no rectifier in front of the pool
  Epilogue epilogue;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, dx.matrix.channels);
    const Pixel at(dx, place.row);
    const Cover rows(at.h, window.kernel_h, window.stride_h, window.pad_top, dy.h);
    const Cover columns(at.w, window.kernel_w, window.stride_w, window.pad_left, dy.w);
    float value[V] = {};
    for (std::int64_t oh = rows.first; oh <= rows.last; ++oh) {
      for (std::int64_t ow = columns.first; ow <= columns.last; ++ow) {
        const std::int64_t row = row_of(dy, at.n, oh, ow);
        const std::int64_t tap = (at.h - oh * window.stride_h + window.pad_top) * window.kernel_w + at.w -
                                 ow * window.stride_w + window.pad_left;
        const auto index = load<std::uint8_t, V>(where, row * dy.matrix.channels + place.channel);
        const auto diff = load<T, V>(dy.matrix.data, row * dy.matrix.pitch + place.channel);
        Vector<T, V> test{};
        if (pooled.data != nullptr) test = load<T, V>(pooled.data, row * pooled.pitch + place.channel);
        for (int k = 0; k < V; ++k) {
          const bool passes = pooled.data == nullptr || to_float(test.at[k]) > 0;
          if (index.at[k] == tap && passes) value[k] += to_float(diff.at[k]);
        }
      }
    }
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

/// Real elements of a window: padding is not in the average.
HVD_HOST_DEVICE inline float area(const Window& window, const Image& x, std::int64_t oh, std::int64_t ow) {
  const std::int64_t top = oh * window.stride_h - window.pad_top;
  const std::int64_t left = ow * window.stride_w - window.pad_left;
  const std::int64_t h = (top + window.kernel_h < x.h ? top + window.kernel_h : x.h) - (top > 0 ? top : 0);
  const std::int64_t w = (left + window.kernel_w < x.w ? left + window.kernel_w : x.w) - (left > 0 ? left : 0);
  return static_cast<float>(h * w);
}

template <class T, int V>
struct AvgPoolBody {
  Window window;
  Image x, y;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, y.matrix.channels);
    const Pixel at(y, place.row);
    float value[V] = {};
    for (int kh = 0; kh < window.kernel_h; ++kh) {
      for (int kw = 0; kw < window.kernel_w; ++kw) {
        const std::int64_t row = row_of(x, at.n, at.h * window.stride_h - window.pad_top + kh,
                                        at.w * window.stride_w - window.pad_left + kw);
        if (row < 0) continue;
        const auto v = load<T, V>(x.matrix.data, row * x.matrix.pitch + place.channel);
        for (int k = 0; k < V; ++k) value[k] += to_float(v.at[k]);
      }
    }
    const float count = area(window, x, at.h, at.w);
    for (int k = 0; k < V; ++k) value[k] /= count;
    store_row<T, V>(y.matrix, place, value);
  }
};

template <class T, int V>
struct AvgPoolBackwardBody {
  Window window;
  Image dy, dx;
  Epilogue epilogue;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, dx.matrix.channels);
    const Pixel at(dx, place.row);
    const Cover rows(at.h, window.kernel_h, window.stride_h, window.pad_top, dy.h);
    const Cover columns(at.w, window.kernel_w, window.stride_w, window.pad_left, dy.w);
    float value[V] = {};
    for (std::int64_t oh = rows.first; oh <= rows.last; ++oh) {
      for (std::int64_t ow = columns.first; ow <= columns.last; ++ow) {
        const float count = area(window, dx, oh, ow);
        const auto diff = load<T, V>(dy.matrix.data, row_of(dy, at.n, oh, ow) * dy.matrix.pitch + place.channel);
        for (int k = 0; k < V; ++k) value[k] += to_float(diff.at[k]) / count;
      }
    }
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

template <class T, int V>
struct GlobalAvgPoolBody {
  Image x;
  Matrix y;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, y.channels);
    const std::int64_t pixels = x.h * x.w;
    float value[V] = {};
    for (std::int64_t p = 0; p < pixels; ++p) {
      const auto v = load<T, V>(x.matrix.data, (place.row * pixels + p) * x.matrix.pitch + place.channel);
      for (int k = 0; k < V; ++k) value[k] += to_float(v.at[k]);
    }
    for (int k = 0; k < V; ++k) value[k] /= static_cast<float>(pixels);
    store_row<T, V>(y, place, value);
  }
};

template <class T, int V>
struct GlobalAvgPoolBackwardBody {
  Matrix dy;
  Image dx;
  Epilogue epilogue;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, dx.matrix.channels);
    const std::int64_t pixels = dx.h * dx.w;
    const auto diff = load<T, V>(dy.data, place.row / pixels * dy.pitch + place.channel);
    float value[V];
    for (int k = 0; k < V; ++k) value[k] = to_float(diff.at[k]) / static_cast<float>(pixels);
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

// ---- Batch norm ----

template <class T>
struct NormFinalizeBody {
  NormFinalize work;

  HVD_HOST_DEVICE void operator()(std::int64_t c) const {
    const auto count = static_cast<float>(work.count);
    const float mean = work.sum[c] / count;
    const float spread = work.square_sum[c] / count - mean * mean;
    const float variance = spread > 0 ? spread : 0;  // the difference of two nearly equal sums may come out below
    const float inv_std = 1.0F / std::sqrt(variance + work.epsilon);
    work.mean[c] = mean;
    work.inv_std[c] = inv_std;
    const float scale = work.gamma[c] * inv_std;
    static_cast<T*>(work.scale)[c] = from_float<T>(scale);
    static_cast<T*>(work.shift)[c] = from_float<T>(work.beta[c] - mean * scale);
    const float unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
    work.running_mean[c] += work.momentum * (mean - work.running_mean[c]);
    work.running_var[c] += work.momentum * (unbiased - work.running_var[c]);
  }
};

/// From the sums over dy and over dy * (x - mean) * inv_std of one channel: its gradients, and the a, b, c of
/// dx = a * dy + b * x + c. Source: Ioffe and Szegedy, arXiv:1502.03167, section 3, solved for dx.
template <class Gradient>
struct NormBackwardFinalizeBody {
  NormBackward work;
  const float *dy_sum, *dy_xhat_sum;

  HVD_HOST_DEVICE void operator()(std::int64_t c) const {
    const float inverse_count = 1.0F / static_cast<float>(work.x.rows);
    const float a = work.norm.gamma[c] * work.norm.inv_std[c];
    const float b = -a * work.norm.inv_std[c] * dy_xhat_sum[c] * inverse_count;
    static_cast<Gradient*>(work.dgamma)[c] = from_float<Gradient>(dy_xhat_sum[c]);
    static_cast<Gradient*>(work.dbeta)[c] = from_float<Gradient>(dy_sum[c]);
    work.a[c] = a;
    work.b[c] = b;
    work.c[c] = -b * work.norm.mean[c] - a * dy_sum[c] * inverse_count;
  }
};

template <class T, int V>
struct NormBackwardApplyBody {
  NormBackward work;
  Matrix dx;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const Place<V> place(i, dx.channels);
    const auto x = load<T, V>(work.x.data, place.in(work.x));
    const auto dy = load<T, V>(work.dy.data, place.in(work.dy));
    const NormAt<V> rectified(work.rectified ? work.norm : Norm(), place.channel);
    float a[V], b[V], c[V], value[V];
    load_floats<V>(work.a, place.channel, a);
    load_floats<V>(work.b, place.channel, b);
    load_floats<V>(work.c, place.channel, c);
    for (int k = 0; k < V; ++k) {
      const float at = to_float(x.at[k]);
      const bool passes = !work.rectified || rectified(k, at) > 0;
      value[k] = a[k] * (passes ? to_float(dy.at[k]) : 0.0F) + b[k] * at + c[k];
    }
    store_row<T, V>(dx, place, value);
  }
};

// What is summed over rows: up to two numbers per element.
template <class T>
struct StatisticsTerm {
  Matrix x;
  static constexpr int kSums = 2;
  template <int V>
  HVD_HOST_DEVICE void add(const Place<V>& place, float (&sum)[kSums][V]) const {
    const auto v = load<T, V>(x.data, place.in(x));
    for (int k = 0; k < V; ++k) {
      const float value = to_float(v.at[k]);
      sum[0][k] += value;
      sum[1][k] += value * value;
    }
  }
};
template <class T>
struct BiasGradientTerm {
  Matrix dy;
  static constexpr int kSums = 1;
  template <int V>
  HVD_HOST_DEVICE void add(const Place<V>& place, float (&sum)[kSums][V]) const {
    const auto v = load<T, V>(dy.data, place.in(dy));
    for (int k = 0; k < V; ++k) sum[0][k] += to_float(v.at[k]);
  }
};
template <class T>
struct NormBackwardTerm {
  NormBackward work;
  static constexpr int kSums = 2;
  template <int V>
  HVD_HOST_DEVICE void add(const Place<V>& place, float (&sum)[kSums][V]) const {
    const auto x = load<T, V>(work.x.data, place.in(work.x));
    const auto dy = load<T, V>(work.dy.data, place.in(work.dy));
    const NormAt<V> rectified(work.rectified ? work.norm : Norm(), place.channel);
    float mean[V], inv_std[V];
    load_floats<V>(work.norm.mean, place.channel, mean);
    load_floats<V>(work.norm.inv_std, place.channel, inv_std);
    for (int k = 0; k < V; ++k) {
      const float at = to_float(x.at[k]);
      const bool passes = !work.rectified || rectified(k, at) > 0;
      const float diff = passes ? to_float(dy.at[k]) : 0.0F;
      sum[0][k] += diff;
      sum[1][k] += diff * (at - mean[k]) * inv_std[k];
    }
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
    const Place<1> place(i, dlogits.channels);
    const float hot = labels[place.row] == place.channel ? 1.0F : 0.0F;
    const float value[1] = {(probabilities[i] - hot) * factor * *loss_scale};
    store_row<T, 1>(dlogits, place, value);
  }
};

/// Four elements: slots are multiples of 64.
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
      if (!(value - value == 0.0F)) loss_scale->overflow = 1;  // every writer writes the same
    }
  }
};

struct AdjustLossScaleBody {
  LossScale* loss_scale;
  std::int32_t growth_interval;
  static constexpr float kLargest = 0x1.0p24F;  // dlogits are scale / batch size: above, no batch stays in fp16

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

/// Four pixels from one block of random words, as models/normal.cpp draws them.
template <class T>
struct SyntheticImagesBody {
  std::uint64_t seed, stream;
  const std::uint64_t* first_sample;
  std::int64_t image_elements, count;
  T* images;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    // Blocks count from the start of the data set: a batch may begin inside one.
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
        if (at >= 0 && at < count) images[at] = from_float<T>(values[k]);
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
