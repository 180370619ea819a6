#include "tests/comm/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/base/float16.h"

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

template <class T>
void put(std::byte* at, std::size_t i, T value) {
  std::memcpy(at + i * sizeof(T), &value, sizeof(T));
}
template <class T>
T get(const std::byte* at, std::size_t i) {
  T value;
  std::memcpy(&value, at + i * sizeof(T), sizeof(T));
  return value;
}

/// For products, values have magnitudes between 1/2 and 2, so that no partial product leaves the range of fp16.
double random_real(ReduceOp op, int rank, std::size_t i) {
  const double unit = random_unit(rank, i);
  return op == ReduceOp::kProduct ? std::copysign(std::exp2(std::fmod(8 * unit, 1.0)), unit) : unit;
}

long double read_float(const std::byte* at, std::size_t i, DataType dtype) {
  switch (dtype) {
    case DataType::kF32: return get<float>(at, i);
    case DataType::kF64: return get<double>(at, i);
    case DataType::kF16: return fp16_to_float(get<std::uint16_t>(at, i));
    default: return bf16_to_float(get<std::uint16_t>(at, i));
  }
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
std::string compare_integers(const std::byte* result, Elements of, const Reduced& c) {
  for (std::size_t i = 0; i < of.count; ++i) {
    const auto value = [&](int rank) {
      std::array<std::byte, sizeof(T)> bytes{};
      write_input(bytes.data(), {of.first + i, 1}, c.dtype, c.op, rank);
      return get<T>(bytes.data(), 0);
    };
    T expected = value(0);
    for (int r = 1; r < c.ranks; ++r) {
      const T next = value(r);
      // Computes in unsigned 64 bits, which wraps as the narrow type does and is never promoted to int.
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
    if (get<T>(result, i) != expected) return "element " + std::to_string(of.first + i) + " is not the exact result";
  }
  return {};
}

// Bound of sums: there are (n - 1) additions, two roundings of the average (reciprocal and product) and one rounding of
// the stored result. Each is off by at most u relative to a partial result, which is at most sum |x|.
// Bound of products: each of the (n - 1) stored products changes the result by a factor of at most (1 + u) (1 + u32).
// Partial products are normal numbers, so the product of these factors is less than (1 + u)^(n + 2).
std::string compare_floats(const std::byte* result, Elements of, const Reduced& c) {
  const long double roundings = c.ranks + 2;
  const long double relative = std::pow(1.0L + roundoff(c.dtype), roundings) - 1.0L;
  for (std::size_t i = 0; i < of.count; ++i) {
    long double sum = 0;
    long double product = 1;
    long double magnitude = 0;
    long double smallest = HUGE_VALL;
    long double largest = -HUGE_VALL;
    for (int r = 0; r < c.ranks; ++r) {
      std::array<std::byte, sizeof(double)> bytes{};
      write_input(bytes.data(), {of.first + i, 1}, c.dtype, c.op, r);
      const long double x = read_float(bytes.data(), 0, c.dtype);
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
    const long double got = read_float(result, i, c.dtype);
    if (!(std::fabs(got - expected) <= bound)) {
      return "element " + std::to_string(of.first + i) + " is " + std::to_string(static_cast<double>(got)) +
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

void write_input(std::byte* at, Elements of, DataType dtype, ReduceOp op, int rank) {
  for (std::size_t i = 0; i < of.count; ++i) {
    const auto bits = [&] { return random_bits(rank, of.first + i); };
    const auto real = [&] { return random_real(op, rank, of.first + i); };
    switch (dtype) {
      case DataType::kF32: put(at, i, static_cast<float>(real())); break;
      case DataType::kF64: put(at, i, real()); break;
      case DataType::kF16: put(at, i, float_to_fp16(static_cast<float>(real()))); break;
      case DataType::kBF16: put(at, i, float_to_bf16(static_cast<float>(real()))); break;
      case DataType::kI32: put(at, i, static_cast<std::int32_t>(bits())); break;
      case DataType::kI64: put(at, i, static_cast<std::int64_t>(bits())); break;
      case DataType::kU8: put(at, i, static_cast<std::uint8_t>(bits())); break;
      case DataType::kI8: put(at, i, static_cast<std::int8_t>(bits())); break;
      case DataType::kI16: put(at, i, static_cast<std::int16_t>(bits())); break;
    }
  }
}

std::string compare_reduced(const std::byte* result, Elements of, const Reduced& c) {
  switch (c.dtype) {
    case DataType::kI32: return compare_integers<std::int32_t>(result, of, c);
    case DataType::kI64: return compare_integers<std::int64_t>(result, of, c);
    case DataType::kU8: return compare_integers<std::uint8_t>(result, of, c);
    case DataType::kI8: return compare_integers<std::int8_t>(result, of, c);
    case DataType::kI16: return compare_integers<std::int16_t>(result, of, c);
    case DataType::kF32:
    case DataType::kF64:
    case DataType::kF16:
    case DataType::kBF16: return compare_floats(result, of, c);
  }
  return "unknown type";
}

}  // namespace hvd::test
