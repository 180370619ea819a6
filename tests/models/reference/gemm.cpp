#include "tests/models/reference/gemm.h"

#include <algorithm>
#include <array>

namespace hvd::models::reference {
namespace {

// A tile of 4 x 4 doubles fits in eight SSE2 registers, which every x86-64 processor has.
constexpr int kRows = 4;
constexpr int kColumns = 4;

// Computes one tile of Rows x Columns. The tile's sums stay in registers for all k.
template <int Rows, int Columns>
void tile(std::int64_t k, const MatrixA& a, const MatrixB& b, const MatrixC& c) {
  std::array<std::array<double, Columns>, Rows> sum{};
  for (std::int64_t i = 0; i < k; ++i) {
    const double* b_row = b.data + i * b.row_stride;
    for (int row = 0; row < Rows; ++row) {
      const double factor = a.data[row * a.row_stride + i * a.column_stride];
      for (int column = 0; column < Columns; ++column) sum[row][column] += factor * b_row[column];
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int column = 0; column < Columns; ++column) c.data[row * c.row_stride + column] += sum[row][column];
  }
}

template <int Rows>
void row_band(std::int64_t n, std::int64_t k, const MatrixA& a, MatrixB b, MatrixC c) {
  std::int64_t column = 0;
  for (; column + kColumns <= n; column += kColumns, b.data += kColumns, c.data += kColumns) {
    tile<Rows, kColumns>(k, a, b, c);
  }
  for (; column < n; ++column, ++b.data, ++c.data) tile<Rows, 1>(k, a, b, c);
}

}  // namespace

void gemm(const GemmSize& size, const MatrixA& a, const MatrixB& b, const MatrixC& c) {
  for (std::int64_t row = 0; row < size.m; row += kRows) {
    const MatrixA band_a{
        .data = a.data + row * a.row_stride, .row_stride = a.row_stride, .column_stride = a.column_stride};
    const MatrixC band_c{.data = c.data + row * c.row_stride, .row_stride = c.row_stride};
    switch (std::min<std::int64_t>(size.m - row, kRows)) {
      case 1: row_band<1>(size.n, size.k, band_a, b, band_c); break;
      case 2: row_band<2>(size.n, size.k, band_a, b, band_c); break;
      case 3: row_band<3>(size.n, size.k, band_a, b, band_c); break;
      default: row_band<kRows>(size.n, size.k, band_a, b, band_c); break;
    }
  }
}

std::vector<double> transposed(std::span<const double> in, std::int64_t rows, std::int64_t columns) {
  std::vector<double> out(in.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      out[static_cast<std::size_t>(c * rows + r)] = in[static_cast<std::size_t>(r * columns + c)];
    }
  }
  return out;
}

}  // namespace hvd::models::reference
