// Runs the element functions of our kernels on the host, for every index of tensors of each element type. Tests compare
// the results with the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "models/cudnn/kernels/element.h"
#include "tests/models/reference/ops.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::kernels::element_testing {

using models::testing::random_values;
using reference::In;
using reference::Out;

template <class T>
constexpr DataType type_of() {
  if constexpr (std::is_same_v<T, Half>) return DataType::kF16;
  if constexpr (std::is_same_v<T, Bfloat>) return DataType::kBF16;
  return DataType::kF32;
}

/// Half the distance from 1 to the next larger number of type T.
template <class T>
constexpr double rounding() {
  if constexpr (std::is_same_v<T, Half>) return 0x1.0p-11;
  if constexpr (std::is_same_v<T, Bfloat>) return 0x1.0p-8;
  return 0x1.0p-24;
}

/// A tensor of the type under test with a gap after each row. `values` has its elements as doubles.
template <class T>
struct Tensor {
  Shape shape;
  std::int64_t pitch = 0;
  std::vector<Vector<T, 1>> memory;
  std::vector<double> values;

  Tensor(const Shape& of, std::int64_t gap) : shape(of), pitch(channels() + gap), memory(size()), values(count()) {}
  Tensor(const Shape& of, std::int64_t gap, std::uint64_t stream) : Tensor(of, gap) {
    const std::vector<double> drawn = random_values(shape.count(), stream);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      memory[at(i)].at[0] = from_float<T>(static_cast<float>(drawn[i]));
      values[i] = static_cast<double>(to_float(memory[at(i)].at[0]));
    }
  }
  [[nodiscard]] std::int64_t channels() const { return shape[shape.rank() - 1]; }
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(shape.count()); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(shape.count() / channels() * pitch); }
  [[nodiscard]] std::size_t at(std::size_t i) const {
    const auto c = static_cast<std::size_t>(channels());
    return i / c * static_cast<std::size_t>(pitch) + i % c;
  }
  Matrix matrix() {
    return {.data = memory.data(),
            .type = type_of<T>(),
            .rows = shape.count() / channels(),
            .channels = channels(),
            .pitch = pitch};
  }
  Image image() { return {.matrix = matrix(), .n = shape[0], .h = shape[1], .w = shape[2]}; }
  [[nodiscard]] In in() const { return {values, shape}; }
  Out out() { return {values, shape}; }
  /// Compares `memory` with `values`. The tolerance is one rounding to T and the roundings of `terms` additions in
  /// fp32.
  void expect_near(const std::string& what, double terms) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double got = static_cast<double>(to_float(memory[at(i)].at[0]));
      const double bound = rounding<T>() * std::abs(values[i]) + terms * 0x1.0p-23 * (1 + std::abs(values[i]));
      ASSERT_NEAR(got, values[i], bound) << what << ", element " << i;
    }
  }
};

/// Calls `body` for every index below `count`.
template <class Body>
void run(const Body& body, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

/// Calls `body`, which processes vectors of a row, for every vector of a matrix.
template <class Body>
void run_rows(const Body& body, std::int64_t rows, std::int64_t channels) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t channel = 0; channel < channels; channel += Body::kWidth) {
      const Place place{row, channel};
      body.store(place, body.channels(channel), body.load(place));
    }
  }
}
template <class Body>
void run_rows(const Body& body, const Shape& of) {
  run_rows(body, of.count() / of[of.rank() - 1], of[of.rank() - 1]);
}

/// The element types with which the typed tests run.
using Types = ::testing::Types<float, Half, Bfloat>;

}  // namespace hvd::models::cudnn::kernels::element_testing
