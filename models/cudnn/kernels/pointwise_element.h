// Pointwise operations and copies of matrices, as row bodies (element.h).
#pragma once

#include <cstdint>

#include "engine/base/philox.h"
#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

/// Adds one number to the hash that names a dropout's random stream (engine/base/hash.h).
HVD_HOST_DEVICE inline std::uint64_t hash_number(std::uint64_t state, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) state = (state ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3ULL;
  return state;
}

/// Computes the factor of dropout for element `feature` of row `row`: 0 or 1 / (1 - rate).
struct DropoutBody {
  std::uint64_t seed, hash;  ///< `hash`: hash of "dropout" and the layer's stream
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

/// Computes any Pointwise. Loads the channels' vectors for each row, because all vectors together need too many
/// registers.
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
/// with or without a rectifier. Supports `test` only without batch norms: `test` and batch norms together take too many
/// registers.
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

}  // namespace hvd::models::cudnn::kernels
