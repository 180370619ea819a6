// Error bounds of kernels that sum in fp32. Tests use them to compare such kernels with results in double.
//
// A sum of K terms in fp32 is off by sqrt(K) roundings of the sum of the absolute terms. Each further operation on the
// sum adds one rounding in fp32. Storing the result adds one rounding to the type of the result.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/cudnn/kernels/kernel_memory.h"

namespace hvd::models::cudnn::kernels {

inline constexpr double kEpsilon = 0x1.0p-23;  // the distance in fp32 from 1 to the next larger number

/// Returns the largest error that rounding `value` to `type` can cause.
inline double stored(DataType type, double value) {
  return rounding(type) * std::abs(value) + (type == DataType::kF16 ? 0x1.0p-25 : 0x1.0p-134);
}

/// A sum in double, and the error bound of the same sum in fp32. `size` is the sum of the absolute terms. Rounding may
/// decide whether a rectifier passes an element that is nearly zero. `undecided` is the error that these elements may
/// cause.
struct Sum {
  double value = 0, size = 0, terms = 0, undecided = 0;
  void add(double term) {
    value += term;
    size += std::abs(term);
    terms += 1;
  }
  /// Returns the bound for a sum whose terms are each off by `roundings` roundings.
  [[nodiscard]] double bound(double roundings = 1) const {
    return kEpsilon * (std::sqrt(terms) + roundings) * size + undecided;
  }
};

inline void expect_within(const std::vector<double>& got, const std::vector<double>& expected,
                          const std::vector<double>& bounds, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], bounds[i]) << what << ' ' << i;
}

inline std::vector<double> doubles(const Memory& memory) {
  const std::vector<float> values = memory.read();
  return {values.begin(), values.end()};
}

}  // namespace hvd::models::cudnn::kernels
