// Computes central finite differences, with an error bound that comes from the values of the function.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>

namespace hvd::models::testing {

struct Scalar {
  double value = 0;
  double magnitude = 0;  ///< sum of the absolute values of the terms summed into `value`
};

/// Step width that balances the truncation error (h^2) and the rounding error (epsilon / h). The cube root of epsilon
/// is 6e-6.
inline constexpr double kStep = 1e-5;

/// The quotient D(h) = (f(x + h) - f(x - h)) / 2h, and a bound of its error.
/// Truncation: D(h) = f' + c h^2 + O(h^4). The error c h^2 is a third of |D(2h) - D(h)|, which serves as the bound.
/// Rounding: f is a sum of terms of total magnitude M, and each term took `chain` operations. f is then off by at most
/// chain * epsilon * M. D(h) divides two values of f by 2h. D(2h) adds half of the rounding error of D(h).
struct Derivative {
  double value = 0, error = 0;
};
inline Derivative derivative(double& x, const std::function<Scalar()>& f, double chain) {
  const double at = x;
  const auto quotient = [&](double h, double& magnitude) {
    x = at + h;
    const Scalar above = f();
    x = at - h;
    const Scalar below = f();
    x = at;
    magnitude = std::max(above.magnitude, below.magnitude);
    return (above.value - below.value) / (2 * h);
  };
  double magnitude = 0;
  const double wide = quotient(2 * kStep, magnitude);
  const double narrow = quotient(kStep, magnitude);
  const double rounding = 1.5 * chain * std::numeric_limits<double>::epsilon() * magnitude / kStep;
  return {.value = narrow, .error = std::abs(wide - narrow) + rounding};
}

/// `f` reads the elements of `x`. Compares `analytic` with the derivative of `f` with respect to every element of `x`.
inline void expect_gradient(const std::string& what, std::span<double> x, std::span<const double> analytic,
                            const std::function<Scalar()>& f, double chain) {
  ASSERT_EQ(x.size(), analytic.size()) << what;
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Derivative numeric = derivative(x[i], f, chain);
    EXPECT_NEAR(analytic[i], numeric.value, numeric.error) << what << ", element " << i;
    largest = std::max(largest, std::abs(analytic[i]));
    // A bound as large as the derivative would accept every value.
    EXPECT_LT(numeric.error, 1e-5) << what << ", element " << i;
  }
  EXPECT_GT(largest, 1e-3) << what << ": all derivatives vanish, nothing was checked";
}

}  // namespace hvd::models::testing
