#include "engine/runtime/operations.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/float16.h"

namespace hvd {
namespace {

template <class T>
void scale_all(std::byte* data, std::size_t count, double factor) {
  auto* const values = reinterpret_cast<T*>(data);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] * factor);
}

/// Rounds to odd: cuts off what a float cannot hold and sets the last bit if anything was cut off. Rounding the result
/// to a type of at most 22 significant bits gives what rounding `value` directly gives. Source: Boldo and Melquiond,
/// "When double rounding is odd", 2005.
float to_odd_float(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

template <auto kWiden, auto kRound>
void scale_halves(std::byte* data, std::size_t count, double factor) {
  auto* const values = reinterpret_cast<std::uint16_t*>(data);
  for (std::size_t i = 0; i < count; ++i) values[i] = kRound(to_odd_float(kWiden(values[i]) * factor));
}

/// Elements of one row of `shape`.
std::size_t row_count(const std::vector<std::int64_t>& shape) {
  return core::count_of({shape.begin() + 1, shape.end()}, "one row");
}

std::vector<std::size_t> counts_of(const std::vector<std::int64_t>& rows, std::size_t each) {
  std::vector<std::size_t> counts;
  counts.reserve(rows.size());
  for (const std::int64_t count : rows) counts.push_back(static_cast<std::size_t>(count) * each);
  return counts;
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

std::vector<std::int64_t> share_rows(std::int64_t rows, int ranks) {
  std::vector<std::int64_t> shares(static_cast<std::size_t>(ranks), rows / ranks);
  for (std::int64_t rank = 0; rank < rows % ranks; ++rank) ++shares[static_cast<std::size_t>(rank)];
  return shares;
}

void scale(std::byte* data, std::size_t count, DataType dtype, double factor) {
  if (factor == 1) return;
  switch (dtype) {
    case DataType::kF32: scale_all<float>(data, count, factor); return;
    case DataType::kF64: scale_all<double>(data, count, factor); return;
    case DataType::kF16: scale_halves<fp16_to_float, float_to_fp16>(data, count, factor); return;
    case DataType::kBF16: scale_halves<bf16_to_float, float_to_bf16>(data, count, factor); return;
    default: HVD_ASSERT(false);  // Request::check() refuses integers
  }
}

void gather_rows(comm::DataPlane& plane, const core::Batch& batch, Operands& operands, Deadline deadline) {
  const auto counts = counts_of(batch.rows, row_count(operands.shape));
  operands.output.rows = batch.rows;
  operands.output.bytes.resize(batch.bytes);
  plane.all_gather(operands.output.bytes.data(), operands.data, counts, batch.dtype, deadline);
}

void reduce_scatter_rows(comm::DataPlane& plane, const comm::Topology& topology, const core::Batch& batch,
                         Operands& operands, Deadline deadline) {
  operands.output.rows = share_rows(operands.shape.front(), topology.size);
  const auto counts = counts_of(operands.output.rows, row_count(operands.shape));
  const std::size_t mine = counts[static_cast<std::size_t>(topology.rank)];
  operands.output.bytes.resize(mine * size_of(batch.dtype));
  const std::byte* in = operands.data;
  std::vector<std::byte> scaled;
  if (batch.terms.prescale != 1) {
    scaled.assign(in, in + batch.bytes);
    scale(scaled.data(), sum(counts), batch.dtype, batch.terms.prescale);
    in = scaled.data();
  }
  plane.reduce_scatter(operands.output.bytes.data(), in, counts, batch.dtype, batch.op, deadline);
  scale(operands.output.bytes.data(), mine, batch.dtype, batch.terms.postscale);
}

void exchange_rows(comm::DataPlane& plane, const core::Batch& batch, Operands& operands, Deadline deadline) {
  const std::vector<std::size_t> one_each(operands.split_rows.size(), 1);
  operands.output.rows.resize(operands.split_rows.size());
  plane.all_to_all(operands.output.rows.data(), one_each, operands.split_rows.data(), one_each, DataType::kI64,
                   deadline);
  const std::size_t each = row_count(operands.shape);
  const auto receive = counts_of(operands.output.rows, each);
  operands.output.bytes.resize(sum(receive) * size_of(batch.dtype));
  plane.all_to_all(operands.output.bytes.data(), receive, operands.data, counts_of(operands.split_rows, each),
                   batch.dtype, deadline);
}

}  // namespace hvd
