#include "engine/base/float16.h"

namespace hvd {

float fp16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  std::uint32_t exponent = (bits >> 10) & 0x1fU;
  std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = 1;
    while ((mantissa & 0x400U) == 0) {
      mantissa <<= 1;
      --exponent;  // wraps below zero on purpose: the bias below brings it back
    }
    mantissa &= 0x3ffU;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

std::uint16_t float_to_fp16(float value) noexcept {
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

}  // namespace hvd
