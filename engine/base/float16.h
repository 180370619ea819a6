// Conversions between float, the 16-bit types and double. They round to nearest even, and NaN stays NaN. Pure; they
// also compile for a GPU.
#pragma once

#include <bit>
#include <cstdint>

namespace hvd {

constexpr float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t float_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // quiet NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float fp16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  std::uint32_t exponent = (bits >> 10) & 0x1fU;
  std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = 1;
    while ((mantissa & 0x400U) == 0) {
      mantissa <<= 1;
      --exponent;  // the unsigned exponent may wrap; adding 112 below wraps it back
    }
    mantissa &= 0x3ffU;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

constexpr std::uint16_t float_to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7e00U;
  if (magnitude >= 0x47800000U) return sign | 0x7c00U;  // >= 65536: infinity
  if (magnitude >= 0x38800000U) {                       // normal
    const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
  }
  if (magnitude < 0x33000000U) return sign;  // below half of the smallest subnormal
  const std::uint32_t shift = 126U - (magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  const std::uint32_t half = 1U << (shift - 1U);
  const std::uint32_t rest = mantissa & ((1U << shift) - 1U);
  std::uint32_t result = mantissa >> shift;
  if (rest > half || (rest == half && (result & 1U) != 0U)) ++result;
  return static_cast<std::uint16_t>(sign | result);
}

/// Rounds to odd: drops the bits that a float cannot hold, and sets the last kept bit if a dropped bit was 1. Rounding
/// the result to a type of at most 22 significant bits gives the same number as rounding `value` directly. Source:
/// Boldo and Melquiond, "When double rounding is odd", 2005.
constexpr float to_odd_float(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  const auto widened = static_cast<double>(nearest);
  if (widened == value || value != value) return nearest;  // exact, or NaN
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if ((widened < 0 ? -widened : widened) > (value < 0 ? -value : value)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

}  // namespace hvd
