// Conversions between float and the 16-bit types. They round to nearest even, and NaN stays NaN.
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

float fp16_to_float(std::uint16_t bits) noexcept;
std::uint16_t float_to_fp16(float value) noexcept;

}  // namespace hvd
