#include "tests/comm/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/base/elements.h"

namespace hvd::test {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64, Steele et al. 2014
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

double random_unit(int rank, std::size_t i) {
  return static_cast<double>(random_bits(rank, i) >> 11) * 0x1p-52 - 1.0;  // [-1, 1)
}

bool is_floating(DataType dtype) {
  return dtype == DataType::kF32 || dtype == DataType::kF64 || dtype == DataType::kF16 || dtype == DataType::kBF16;
}

/// For products, values have magnitudes between 1/2 and 2, so that no partial product leaves the range of fp16.
double random_real(ReduceOp op, int rank, std::size_t i) {
  const double unit = random_unit(rank, i);
  return op == ReduceOp::kProduct ? std::copysign(std::exp2(std::fmod(8 * unit, 1.0)), unit) : unit;
}

/// The type's unit roundoff.
long double roundoff(DataType dtype) {
  switch (dtype) {
    case DataType::kF64: return 0x1p-53L;
    case DataType::kF32: return 0x1p-24L;
    case DataType::kF16: return 0x1p-11L;
    default: return 0x1p-8L;
  }
}

/// Half the spacing of subnormals: the largest error of rounding a subnormal value.
long double underflow(DataType dtype) { return dtype == DataType::kF16 ? 0x1p-25L : 0.0L; }

template <class T>
std::string compare_integers(const std::byte* result, Elements elements, const Reduced& c) {
  for (std::size_t i = 0; i < elements.count; ++i) {
    const auto value = [&](int rank) {
      std::array<std::byte, sizeof(T)> bytes{};
      write_input(bytes.data(), {elements.first + i, 1}, c.dtype, c.op, rank);
      return std::bit_cast<T>(bytes);
    };
    T expected = value(0);
    for (int r = 1; r < c.ranks; ++r) {
      const T next = value(r);
      // Unsigned 64-bit arithmetic wraps as the narrow type does and is never promoted to int.
      const auto x = static_cast<std::uint64_t>(expected);
      const auto y = static_cast<std::uint64_t>(next);
      switch (c.op) {
        case ReduceOp::kMin: expected = std::min(expected, next); break;
        case ReduceOp::kMax: expected = std::max(expected, next); break;
        case ReduceOp::kProduct: expected = static_cast<T>(x * y); break;
        case ReduceOp::kSum:
        case ReduceOp::kAverage: expected = static_cast<T>(x + y); break;
      }
    }
    if (c.op == ReduceOp::kAverage) expected = static_cast<T>(static_cast<std::int64_t>(expected) / c.ranks);
    if (std::memcmp(result + i * sizeof expected, &expected, sizeof expected) != 0)
      return "element " + std::to_string(elements.first + i) + " is not the exact result";
  }
  return {};
}

// Bound of sums: there are (n - 1) additions, two roundings of the average (reciprocal and product) and one rounding of
// the stored result. Each of these is off by at most u relative to a partial result, which is at most sum |x|.
// Bound of products: each of the (n - 1) stored products changes the result by a factor of at most (1 + u) (1 + u32).
// Partial products are normal numbers, so the product of these factors is less than (1 + u)^(n + 2).
std::string compare_floats(const std::byte* result, Elements elements, const Reduced& c) {
  const long double roundings = c.ranks + 2;
  const long double relative = std::pow(1.0L + roundoff(c.dtype), roundings) - 1.0L;
  for (std::size_t i = 0; i < elements.count; ++i) {
    long double sum = 0;
    long double product = 1;
    long double magnitude = 0;
    long double smallest = HUGE_VALL;
    long double largest = -HUGE_VALL;
    for (int r = 0; r < c.ranks; ++r) {
      std::array<std::byte, sizeof(double)> bytes{};
      write_input(bytes.data(), {elements.first + i, 1}, c.dtype, c.op, r);
      const long double x = load_element(bytes.data(), c.dtype);
      sum += x;
      product *= x;
      magnitude += std::fabs(x);
      smallest = std::min(smallest, x);
      largest = std::max(largest, x);
    }
    long double expected = 0;
    long double bound = 0;
    switch (c.op) {
      case ReduceOp::kMin: expected = smallest; break;
      case ReduceOp::kMax: expected = largest; break;
      case ReduceOp::kProduct:
        expected = product;
        bound = relative * std::fabs(product);
        break;
      case ReduceOp::kSum:
      case ReduceOp::kAverage: {
        const int divisor = c.op == ReduceOp::kAverage ? c.ranks : 1;
        expected = sum / divisor;
        bound = relative * magnitude / divisor + roundings * underflow(c.dtype);
      }
    }
    if (c.ranks == 1) bound = 0;
    const long double got = load_element(result + i * size_of(c.dtype), c.dtype);
    if (!(std::fabs(got - expected) <= bound)) {
      return "element " + std::to_string(elements.first + i) + " is " + std::to_string(static_cast<double>(got)) +
             ", expected " + std::to_string(static_cast<double>(expected)) + " within " +
             std::to_string(static_cast<double>(bound));
    }
  }
  return {};
}

}  // namespace

std::uint64_t random_bits(int rank, std::size_t i) { return mix(static_cast<std::uint64_t>(rank) * 1000003U + i); }

/// Reads a word at a time, because ThreadSanitizer checks every access.
std::uint64_t digest(std::span<const std::byte> bytes) {
  std::uint64_t state = bytes.size();
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(state)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    state = mix(state ^ word);
  }
  return state;
}

void write_input(std::byte* at, Elements elements, DataType dtype, ReduceOp op, int rank) {
  for (std::size_t i = elements.first; i < elements.first + elements.count; ++i, at += size_of(dtype)) {
    if (is_floating(dtype)) {
      store_element(at, random_real(op, rank, i), dtype);
    } else {
      const std::uint64_t bits = random_bits(rank, i);  // an integer gets the low bytes
      std::memcpy(at, &bits, size_of(dtype));
    }
  }
}

std::string compare_reduced(const std::byte* result, Elements elements, const Reduced& c) {
  if (is_floating(c.dtype)) return compare_floats(result, elements, c);
  return with_element_of(c.dtype, [&](auto element) -> std::string {
    if constexpr (std::is_integral_v<decltype(element)>)
      return compare_integers<decltype(element)>(result, elements, c);
    return "not an integer";
  });
}

}  // namespace hvd::test
