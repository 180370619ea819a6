// Batch norm's work on one channel or one vector of elements, and the terms of sums over rows. See element.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

// Work on one channel is limited by latency, so everything is read before anything is written.
template <class T>
struct NormFinalizeBody {
  NormFinalize work;

  HVD_HOST_DEVICE void operator()(std::int64_t c) const { (*this)(c, work.sum[c], work.square_sum[c]); }
  HVD_HOST_DEVICE void operator()(std::int64_t c, float sum, float square_sum) const {
    const float gamma = work.gamma[c], beta = work.beta[c];
    const float running_mean = work.running_mean[c], running_var = work.running_var[c];
    const auto count = static_cast<float>(work.count);
    const float mean = sum / count;
    const float spread = square_sum / count - mean * mean;
    const float variance = spread > 0 ? spread : 0;  // rounding may make `spread` negative
    const float inv_std = 1.0F / std::sqrt(variance + work.epsilon);
    const float scale = gamma * inv_std;
    const float unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
    work.mean[c] = mean;
    work.inv_std[c] = inv_std;
    static_cast<T*>(work.scale)[c] = from_float<T>(scale);
    static_cast<T*>(work.shift)[c] = from_float<T>(beta - mean * scale);
    work.running_mean[c] = running_mean + work.momentum * (mean - running_mean);
    work.running_var[c] = running_var + work.momentum * (unbiased - running_var);
  }
};

/// Computes the gradients of one channel, and a, b and c of dx = a * dy + b * x + c, from the channel's sums of dy and
/// of dy * (x - mean). Source: Ioffe and Szegedy, arXiv:1502.03167, section 3, solved for dx.
template <class Gradient>
struct NormBackwardFinalizeBody {
  NormBackward work;

  HVD_HOST_DEVICE void operator()(std::int64_t c, float dy_sum, float dy_centred_sum) const {
    const float inv_std = work.norm.inv_std[c], gamma = work.norm.gamma[c], mean = work.norm.mean[c];
    const float dy_xhat_sum = dy_centred_sum * inv_std;
    const float inverse_count = 1.0F / static_cast<float>(work.x.rows);
    const float a = inv_std * gamma;  // equal to NormAt's scale
    const float b = -a * inv_std * dy_xhat_sum * inverse_count;
    static_cast<Gradient*>(work.dgamma)[c] = from_float<Gradient>(dy_xhat_sum);
    static_cast<Gradient*>(work.dbeta)[c] = from_float<Gradient>(dy_sum);
    work.a[c] = a;
    work.b[c] = b;
    work.c[c] = -b * mean - a * dy_sum * inverse_count;
  }
};

/// One vector of each input of a batch norm's backward.
template <class T, int V>
struct NormBackwardRow {
  Vector<T, V> x, dy;
  HVD_HOST_DEVICE static NormBackwardRow load(const NormBackward& work, const Place& place) {
    return {kernels::load<T, V>(work.x.data, place.in(work.x)), kernels::load<T, V>(work.dy.data, place.in(work.dy))};
  }
};

template <class T, int V, bool kRectified>
struct NormBackwardApplyBody {
  NormBackward work;
  Matrix dx;
  static constexpr int kWidth = V, kRowsAtOnce = 2, kBlocks = kRectified ? 3 : 4;
  struct Channels {
    NormAt<V> norm;  ///< norm.scale is loaded from `a`, which has the same values
    float b[V], c[V];
  };
  using Row = NormBackwardRow<T, V>;

  HVD_HOST_DEVICE Channels channels(std::int64_t channel) const {
    Channels made;
    load_floats<V>(work.a, channel, made.norm.scale);
    if constexpr (kRectified) {
      load_floats<V>(work.norm.mean, channel, made.norm.mean);
      load_floats<V>(work.norm.beta, channel, made.norm.beta);
    }
    load_floats<V>(work.b, channel, made.b);
    load_floats<V>(work.c, channel, made.c);
    return made;
  }
  HVD_HOST_DEVICE Row load(const Place& place) const { return Row::load(work, place); }
  HVD_HOST_DEVICE void store(const Place& place, const Channels& channels, const Row& row) const {
    float value[V];
    for (int k = 0; k < V; ++k) value[k] = to_float(row.dy.at[k]);
    if constexpr (kRectified) mask(row.x, channels.norm, value);
    for (int k = 0; k < V; ++k) {
      value[k] = channels.norm.scale[k] * value[k] + channels.b[k] * to_float(row.x.at[k]) + channels.c[k];
    }
    store_row<T, V>(dx, place, value);
  }
};

// A term is what a sum over rows (norm.cu) adds up for each element: one or two numbers. A term is a row body with
// add() instead of store().
template <class T, int V>
struct StatisticsTerm {
  Matrix x;
  static constexpr int kSums = 2, kRowsAtOnce = 4, kBlocks = 4;
  using Channels = Nothing;
  using Row = Vector<T, V>;

  HVD_HOST_DEVICE Channels channels(std::int64_t /*channel*/) const { return {}; }
  HVD_HOST_DEVICE Row load(const Place& place) const { return kernels::load<T, V>(x.data, place.in(x)); }
  HVD_HOST_DEVICE void add(const Channels& /*channels*/, const Row& row, float (&sum)[kSums][V]) const {
    for (int k = 0; k < V; ++k) {
      const float value = to_float(row.at[k]);
      sum[0][k] += value;
      sum[1][k] += value * value;
    }
  }
};

template <class T, int V>
struct BiasGradientTerm {
  Matrix dy;
  static constexpr int kSums = 1, kRowsAtOnce = 4, kBlocks = 4;
  using Channels = Nothing;
  using Row = Vector<T, V>;

  HVD_HOST_DEVICE Channels channels(std::int64_t /*channel*/) const { return {}; }
  HVD_HOST_DEVICE Row load(const Place& place) const { return kernels::load<T, V>(dy.data, place.in(dy)); }
  HVD_HOST_DEVICE void add(const Channels& /*channels*/, const Row& row, float (&sum)[kSums][V]) const {
    kernels::add(row, sum[0]);
  }
};

/// The sums of dy and of dy * (x - mean). NormBackwardFinalizeBody multiplies these by factors that all rows share.
template <class T, int V, bool kRectified>
struct NormBackwardTerm {
  NormBackward work;
  static constexpr int kSums = 2, kRowsAtOnce = 3, kBlocks = 3;
  using Channels = NormAt<V>;
  using Row = NormBackwardRow<T, V>;

  HVD_HOST_DEVICE Channels channels(std::int64_t channel) const { return Channels(work.norm, channel); }
  HVD_HOST_DEVICE Row load(const Place& place) const { return Row::load(work, place); }
  HVD_HOST_DEVICE void add(const Channels& norm, const Row& row, float (&sum)[kSums][V]) const {
    float diff[V];
    for (int k = 0; k < V; ++k) diff[k] = to_float(row.dy.at[k]);
    if constexpr (kRectified) mask(row.x, norm, diff);
    for (int k = 0; k < V; ++k) {
      sum[0][k] += diff[k];
      sum[1][k] += diff[k] * (to_float(row.x.at[k]) - norm.mean[k]);
    }
  }
};

}  // namespace hvd::models::cudnn::kernels
