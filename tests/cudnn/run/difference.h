// Measures the distance of two vectors. Also finds where two lists of vectors first differ.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "models/train_step.h"

namespace hvd::models::cudnn::testing {

struct Difference {
  double error = 0;  ///< Euclidean norm of got - expected
  double norm = 0;   ///< Euclidean norm of expected

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

/// Compares two lists of vectors bit by bit. Each list has one vector per slot. Returns one line with the first
/// difference and the number of differences. Returns an empty text if all bits are equal.
inline std::string first_difference(std::span<const ArenaSlot> slots, const std::vector<std::vector<float>>& got,
                                    const std::vector<std::vector<float>>& expected) {
  if (got.size() != slots.size() || expected.size() != slots.size()) return "not one vector per parameter";
  std::ostringstream line;
  std::size_t parameters = 0, elements = 0, all = 0;
  for (std::size_t p = 0; p < slots.size(); ++p) {
    if (got[p].size() != expected[p].size()) return slots[p].name + ": another number of elements";
    all += got[p].size();
    const std::size_t before = elements;
    for (std::size_t i = 0; i < got[p].size(); ++i) {
      if (std::memcmp(&got[p][i], &expected[p][i], sizeof(float)) == 0) continue;
      if (elements++ == 0) {
        line.precision(9);
        line << "first " << slots[p].name << "[" << i << "]: " << got[p][i] << ", expected " << expected[p][i];
      }
    }
    parameters += elements > before ? 1U : 0U;
  }
  if (elements == 0) return {};
  line << "; " << elements << " of " << all << " elements differ, in " << parameters << " of " << slots.size()
       << " parameters";
  return line.str();
}

}  // namespace hvd::models::cudnn::testing
