// The one hot loop of the reference backend: a small matrix product in double precision. Pure.
#pragma once

#include <cstdint>

namespace hvd::models::reference {

struct MatrixA {  ///< m x k, any strides
  const double* data = nullptr;
  std::int64_t row_stride = 0, column_stride = 1;
};
struct MatrixB {  ///< k x n, columns contiguous
  const double* data = nullptr;
  std::int64_t row_stride = 0;
};
struct MatrixC {  ///< m x n, columns contiguous
  double* data = nullptr;
  std::int64_t row_stride = 0;
};
struct GemmSize {
  std::int64_t m = 0, n = 0, k = 0;
};

/// C += A B. The strides are what lets convolutions use it without copies: neighbouring output columns of one
/// image row are matrix rows `stride * channels` apart.
void gemm(const GemmSize& size, const MatrixA& a, const MatrixB& b, const MatrixC& c);

}  // namespace hvd::models::reference
