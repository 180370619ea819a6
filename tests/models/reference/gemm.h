// A small matrix product in double precision, the only hot loop of the reference backend. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

/// Computes C += A B. Because A has any strides, a convolution need not copy its input: the inputs of neighbouring
/// output columns of one image row are rows of A that are `stride * channels` elements apart.
void gemm(const GemmSize& size, const MatrixA& a, const MatrixB& b, const MatrixC& c);

/// Returns the transpose of a {rows, columns} matrix.
std::vector<double> transposed(std::span<const double> in, std::int64_t rows, std::int64_t columns);

}  // namespace hvd::models::reference
