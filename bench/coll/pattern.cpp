#include "bench/coll/pattern.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/assert.h"
#include "engine/base/float16.h"
#include "engine/base/philox.h"

namespace hvd::bench::coll {
namespace {

/// Returns the largest n such that the type represents all integers from 0 to n exactly, but at most 2^20.
std::int64_t exact_limit(DataType type) {
  switch (type) {
    case DataType::kI8: return 127;
    case DataType::kU8: return 255;
    case DataType::kBF16: return 256;
    case DataType::kF16: return 2048;
    case DataType::kI16: return 32767;
    case DataType::kF32:
    case DataType::kF64:
    case DataType::kI32:
    case DataType::kI64: return std::int64_t{1} << 20;
  }
  return 1;
}

/// Returns twice the unit roundoff; 0 for integer types.
double epsilon(DataType type) {
  switch (type) {
    case DataType::kBF16: return 0x1p-7;
    case DataType::kF16: return 0x1p-10;
    case DataType::kF32: return std::numeric_limits<float>::epsilon();
    case DataType::kF64: return std::numeric_limits<double>::epsilon();
    default: return 0;
  }
}

template <class T>
void put(std::byte* to, double value) {
  const T converted = static_cast<T>(value);
  std::memcpy(to, &converted, sizeof converted);
}

template <class T>
double get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

void encode(DataType type, double value, std::byte* to) {
  switch (type) {
    case DataType::kF32: return put<float>(to, value);
    case DataType::kF64: return put<double>(to, value);
    case DataType::kF16: return put<std::uint16_t>(to, float_to_fp16(static_cast<float>(value)));
    case DataType::kBF16: return put<std::uint16_t>(to, float_to_bf16(static_cast<float>(value)));
    case DataType::kI32: return put<std::int32_t>(to, value);
    case DataType::kI64: return put<std::int64_t>(to, value);
    case DataType::kU8: return put<std::uint8_t>(to, value);
    case DataType::kI8: return put<std::int8_t>(to, value);
    case DataType::kI16: return put<std::int16_t>(to, value);
  }
}

double decode(DataType type, const std::byte* from) {
  switch (type) {
    case DataType::kF32: return get<float>(from);
    case DataType::kF64: return get<double>(from);
    case DataType::kF16: return fp16_to_float(static_cast<std::uint16_t>(get<std::uint16_t>(from)));
    case DataType::kBF16: return bf16_to_float(static_cast<std::uint16_t>(get<std::uint16_t>(from)));
    case DataType::kI32: return get<std::int32_t>(from);
    case DataType::kI64: return get<std::int64_t>(from);
    case DataType::kU8: return get<std::uint8_t>(from);
    case DataType::kI8: return get<std::int8_t>(from);
    case DataType::kI16: return get<std::int16_t>(from);
  }
  return 0;
}

std::int64_t draw(int rank, std::size_t i, std::int64_t bound) {
  return static_cast<std::int64_t>(Philox(1, static_cast<std::uint64_t>(rank)).block(i)[0] %
                                   static_cast<std::uint32_t>(bound));
}

/// Returns a number of at least 0. The sum over all ranks is at most `limit`. If there are more ranks than `limit`,
/// then `limit` of the ranks return 1 and the others 0.
double addend(int rank, int ranks, std::size_t i, std::int64_t limit) {
  if (const std::int64_t per_rank = limit / ranks; per_rank > 0)
    return static_cast<double>(draw(rank, i, per_rank + 1));
  return (i + static_cast<std::size_t>(rank)) % static_cast<std::size_t>(ranks) < static_cast<std::size_t>(limit) ? 1
                                                                                                                  : 0;
}

/// Returns 1 or 2. The product over all ranks is at most 2^6, which every type represents exactly.
double factor(int rank, int ranks, std::size_t i) {
  constexpr std::size_t kMaxTwos = 6;
  const auto world = static_cast<std::size_t>(ranks);
  const std::size_t twos = i % (std::min(kMaxTwos, world) + 1);
  return (i + static_cast<std::size_t>(rank)) % world < twos ? 2 : 1;
}

/// Like addend(), but in half of the elements all ranks return the largest value. Without these elements, the average
/// over many ranks in a narrow type would be 0 everywhere.
double average_addend(int rank, int ranks, std::size_t i, std::int64_t limit) {
  constexpr int kCommon = 1 << 30;  // a random stream that belongs to no rank
  const std::int64_t per_rank = limit / ranks;
  return per_rank > 0 && draw(kCommon, i, 2) == 1 ? static_cast<double>(per_rank) : addend(rank, ranks, i, limit);
}

double operand(int rank, int ranks, std::size_t i, std::int64_t limit, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return addend(rank, ranks, i, limit);
    case ReduceOp::kAverage: return average_addend(rank, ranks, i, limit);
    case ReduceOp::kMin:
    case ReduceOp::kMax: return static_cast<double>(draw(rank, i, limit + 1));
    case ReduceOp::kProduct: return factor(rank, ranks, i);
  }
  return 0;
}

double combine(double a, double b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return a + b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kProduct: return a * b;
  }
  return 0;
}

std::vector<double> operands(int rank, int ranks, DataType type, ReduceOp op) {
  std::vector<double> values(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) values[i] = operand(rank, ranks, i, exact_limit(type), op);
  return values;
}

}  // namespace

Pattern::Pattern(DataType type, const std::vector<double>& values, double slack)
    : type_(type), slack_(slack), values_(values), bytes_(kPeriod * size_of(type)) {
  HVD_ASSERT(values.size() == kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) encode(type, values[i], bytes_.data() + i * size_of(type));
}

void Pattern::fill(std::span<std::byte> to, std::size_t phase) const {
  std::size_t at = phase % kPeriod * size_of(type_);
  while (!to.empty()) {
    const std::size_t take = std::min(to.size(), bytes_.size() - at);
    std::memcpy(to.data(), bytes_.data() + at, take);
    to = to.subspan(take);
    at = 0;
  }
}

std::uint64_t Pattern::wrong(std::span<const std::byte> elements, std::size_t phase) const {
  const std::size_t element = size_of(type_);
  std::uint64_t count = 0;
  std::size_t at = phase % kPeriod * element;
  while (!elements.empty()) {
    const std::size_t take = std::min(elements.size(), bytes_.size() - at);
    if (std::memcmp(elements.data(), bytes_.data() + at, take) != 0) {
      for (std::size_t i = 0; i < take; i += element) {
        const double wanted = values_[(at + i) / element];
        // Written as !(a <= b) and not as a > b, so that a NaN counts as wrong.
        if (!(std::abs(decode(type_, elements.data() + i) - wanted) <= slack_ * std::abs(wanted))) ++count;
      }
    }
    elements = elements.subspan(take);
    at = 0;
  }
  return count;
}

Pattern reduction_input(int rank, int ranks, DataType type, ReduceOp op) {
  return {type, operands(rank, ranks, type, op)};
}

Pattern reduction_result(int ranks, DataType type, ReduceOp op) {
  std::vector<double> result = operands(0, ranks, type, op);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<double> more = operands(rank, ranks, type, op);
    for (std::size_t i = 0; i < kPeriod; ++i) result[i] = combine(result[i], more[i], op);
  }
  if (op != ReduceOp::kAverage) return {type, result};
  const bool floating = epsilon(type) > 0;
  for (double& value : result) value = floating ? value / ranks : std::trunc(value / ranks);
  const bool exact = !floating || std::has_single_bit(static_cast<unsigned>(ranks));
  return {type, result, exact ? 0 : (ranks + 1) * epsilon(type) / 2};
}

Pattern message(int source, int destination, DataType type) {
  const std::int64_t limit = exact_limit(type);
  std::vector<double> values(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    values[i] = static_cast<double>(draw(source, i + kPeriod * static_cast<std::size_t>(destination), limit + 1));
  }
  return {type, values};
}

}  // namespace hvd::bench::coll
