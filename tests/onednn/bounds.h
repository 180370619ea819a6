// Error bounds of the elements of single operations, derived from the arithmetic. u = 2^-24 is the unit roundoff of
// fp32.
//
// A sum of K products a_i b_i, added in any order in fp32, has |error| <= lambda sqrt(K) u sum |a_i b_i| with
// probability at least 1 - 2 K exp(-lambda^2 / 2) (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 3.1). The
// authors see lambda = 1 in practice. Here lambda = 2, so the bound is sqrt(K) x epsilon with epsilon = 2u. Storing a
// result as bf16 (8 significant bits) adds an error of half a unit in the last place, 2^-8 of the result. Inputs are
// exact, because the reference reads the same values that the library read.
#pragma once

#include <vector>

#include "models/graph/graph.h"
#include "tests/models/reference/ops.h"

namespace hvd::models::testing {

inline constexpr double kEpsilon = 0x1p-23;
inline constexpr double kEpsilonBf16 = 0x1p-7;

struct Tensor {
  Shape shape;
  std::vector<double> data;
  std::vector<double> bound;  ///< bound of |the library's value - data|; empty: data is exact
  [[nodiscard]] reference::In in() const { return {data, shape}; }
  [[nodiscard]] reference::Out out() { return {data, shape}; }
};

Tensor zeros(const Shape& shape);

/// Returns sqrt(terms) * epsilon * magnitude for each element. `magnitude` is the operation's result on absolute
/// values.
std::vector<double> sum_bound(double terms, const Tensor& magnitude, double epsilon = kEpsilon);

/// Returns the bound of Winograd F(4x4, 3x3). For independent data, the root mean square error of the products after
/// the transforms is winograd_amplification() times the error of a direct sum. The error of an output depends on all
/// outputs of its tile. The bound of every element therefore uses the largest magnitude in the tensor.
std::vector<double> winograd_bound(double terms, const Tensor& magnitude);
/// Returns max_k sum_i A_ki^2 |G_i|^2 |B_i|^2 / 3 for oneDNN's interpolation points 0, +-5/8, +-3/2 and infinity.
double winograd_amplification();

struct BatchNormResult {
  Tensor y, mean, inv_std;
};
BatchNormResult batch_norm(const BatchNormAttr& attr, const Tensor& x, const Tensor& gamma, const Tensor& beta);

struct BatchNormDiffs {
  Tensor dx, dgamma, dbeta;
};
/// `x`, `gamma` and `dy` are exact. `mean` and `inv_std` are computed in double, but the library uses its own values,
/// which are off by the rounding of their sums. The bounds include this difference.
BatchNormDiffs batch_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& inv_std,
                                   const Tensor& dy);

}  // namespace hvd::models::testing
