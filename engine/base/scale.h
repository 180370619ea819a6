// Multiplies elements by a factor in double precision and rounds each product to the element type. The host and the
// kernel in engine/gpu/scale.cu use the same functions and get the same bits. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "engine/base/float16.h"
#include "engine/base/types.h"

namespace hvd {

/// Fp16 and Bf16 hold the bits of a 16-bit float as they are in memory.
struct Fp16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};

constexpr double scaled(double value, double factor) noexcept { return value * factor; }
constexpr float scaled(float value, double factor) noexcept { return static_cast<float>(value * factor); }
constexpr Fp16 scaled(Fp16 value, double factor) noexcept {
  return {float_to_fp16(to_odd_float(fp16_to_float(value.bits) * factor))};
}
constexpr Bf16 scaled(Bf16 value, double factor) noexcept {
  return {float_to_bf16(to_odd_float(bf16_to_float(value.bits) * factor))};
}

/// Calls body(values), where `values` is `data` as an array of elements of `dtype`. Errors: invalid_argument for
/// integers.
template <class Body>
void with_floats(std::byte* data, DataType dtype, const Body& body) {
  switch (dtype) {
    case DataType::kF32: return body(reinterpret_cast<float*>(data));
    case DataType::kF64: return body(reinterpret_cast<double*>(data));
    case DataType::kF16: return body(reinterpret_cast<Fp16*>(data));
    case DataType::kBF16: return body(reinterpret_cast<Bf16*>(data));
    default: break;
  }
  throw Error(Errc::kInvalidArgument, "elements of " + std::string(name(dtype)) + " cannot be scaled");
}

/// Multiplies `count` elements of host memory by `factor`. Errors: those of with_floats().
void scale(std::byte* data, std::size_t count, DataType dtype, double factor);

}  // namespace hvd
