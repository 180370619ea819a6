// How far two vectors are apart.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

namespace hvd::models::cudnn::testing {

struct Difference {
  double error = 0;  ///< Euclidean norm of got - expected
  double norm = 0;   ///< of expected

  template <class A, class B>
  Difference(const A& got, const B& expected) {
    EXPECT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size() && i < expected.size(); ++i) {
      const double d = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
      error += d * d;
      norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    error = std::sqrt(error);
    norm = std::sqrt(norm);
  }
};

}  // namespace hvd::models::cudnn::testing
