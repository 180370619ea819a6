// Error bounds of single operations, elementwise, derived from the arithmetic. u = 2^-24 is fp32's unit roundoff.
//
// A sum of K products, added in any order in fp32: |error| <= lambda sqrt(K) u sum |a_i b_i| with probability at least
// 1 - 2 K exp(-lambda^2 / 2) (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 3.1). They see lambda = 1 in
// practice. Here lambda = 2, so the bound is sqrt(K) x epsilon with epsilon = 2u. Storing a result as bf16 (8
// significant bits) adds half a unit in its last place, 2^-8 of its magnitude. Inputs are exact: they are the values
// that the library itself read.
#pragma once

#include <vector>

#include "models/graph/graph.h"
#include "models/reference/ops.h"

namespace hvd::models::testing {

inline constexpr double kEpsilon = 0x1p-23;
inline constexpr double kEpsilonBf16 = 0x1p-7;

struct Tensor {
  Shape shape;
  std::vector<double> data;
  std::vector<double> bound;  ///< bound of |library - data|; empty: data is exact
  [[nodiscard]] reference::In in() const { return {data, shape}; }
  [[nodiscard]] reference::Out out() { return {data, shape}; }
};

Tensor zeros(const Shape& shape);

/// sqrt(terms) * epsilon * magnitude, elementwise. `magnitude` is the result of the same operation on absolute values.
std::vector<double> sum_bound(double terms, const Tensor& magnitude, double epsilon = kEpsilon);

/// Bound of Winograd F(4x4, 3x3). For independent data, the root mean square error of the products after the transforms
/// is winograd_amplification() times that of a direct sum. An output's error mixes all outputs of its tile, so the
/// largest magnitude of the tensor counts everywhere.
std::vector<double> winograd_bound(double terms, const Tensor& magnitude);
/// max_k sum_i A_ki^2 |G_i|^2 |B_i|^2 / 3 for the interpolation points 0, +-5/8, +-3/2, infinity that oneDNN uses.
double winograd_amplification();

struct BatchNormResult {
  Tensor y, mean, inv_std;
};
BatchNormResult batch_norm(const BatchNormAttr& attr, const Tensor& x, const Tensor& gamma, const Tensor& beta);

struct BatchNormDiffs {
  Tensor dx, dgamma, dbeta;
};
/// `x`, `gamma` and `dy` are exact. `mean` and `inv_std` are computed in double. The library's own values have the
/// error bound of their sums.
BatchNormDiffs batch_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& inv_std,
                                   const Tensor& dy);

}  // namespace hvd::models::testing
