// Compares the 16-bit conversions with a slow implementation in double precision that uses no bit tricks.
#include "engine/base/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace hvd::float16_test {
namespace {

/// A binary floating-point format: the number of stored mantissa bits, and the exponents of the smallest and the
/// largest normal number.
struct Format {
  int mantissa_bits;
  int min_exponent;
  int max_exponent;
};
constexpr Format kFp16{10, -14, 15};
constexpr Format kBf16{7, -126, 127};

/// Returns the exact value of a finite bit pattern.
double slow_decode(std::uint16_t bits, const Format& format) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, format.min_exponent - format.mantissa_bits)
                                         : std::ldexp((1 << format.mantissa_bits) + mantissa,
                                                      exponent - 1 + format.min_exponent - format.mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Rounds `value` to the nearest pattern, ties to even. Returns infinity if `value` is at least half a step above the
/// largest finite value.
std::uint16_t slow_encode(double value, const Format& format) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  const auto infinity =
      static_cast<std::uint16_t>((format.max_exponent - format.min_exponent + 2) << format.mantissa_bits);
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  const double steps = std::ldexp(magnitude, format.mantissa_bits - exponent);  // exact: scales by a power of two
  double whole = std::floor(steps);
  const double rest = steps - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) != 0.0)) whole += 1;
  // If rounding up overflows the mantissa, the carry of this addition raises the exponent by one.
  const double pattern = whole + (exponent - format.min_exponent) * std::ldexp(1.0, format.mantissa_bits);
  return sign | (pattern >= infinity ? infinity : static_cast<std::uint16_t>(pattern));
}

bool is_nan(std::uint16_t bits, const Format& format) {
  const int infinity = (format.max_exponent - format.min_exponent + 2) << format.mantissa_bits;
  return (bits & 0x7fff) > infinity;
}
bool is_infinite(std::uint16_t bits, const Format& format) {
  const int infinity = (format.max_exponent - format.min_exponent + 2) << format.mantissa_bits;
  return (bits & 0x7fff) == infinity;
}

struct Conversion {
  const char* name;
  Format format;
  float (*decode)(std::uint16_t) noexcept;
  std::uint16_t (*encode)(float) noexcept;
};
const Conversion kConversions[] = {
    {"fp16", kFp16, fp16_to_float, float_to_fp16},
    {"bf16", kBf16, [](std::uint16_t b) noexcept { return bf16_to_float(b); },
     [](float v) noexcept { return float_to_bf16(v); }},
};

class Float16 : public ::testing::TestWithParam<Conversion> {};

TEST_P(Float16, EveryPatternDecodesExactlyAndRoundTrips) {
  const auto& [name, format, decode, encode] = GetParam();
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = decode(bits);
    if (is_nan(bits, format)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << i;
      ASSERT_TRUE(is_nan(encode(value), format)) << std::hex << i;
      ASSERT_EQ(encode(value) & 0x8000, bits & 0x8000) << std::hex << i;
      continue;
    }
    if (is_infinite(bits, format)) {
      ASSERT_TRUE(std::isinf(value)) << std::hex << i;
    } else {
      ASSERT_EQ(static_cast<double>(value), slow_decode(bits, format)) << std::hex << i;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << std::hex << i;
    ASSERT_EQ(encode(value), bits) << std::hex << i;
  }
}

/// Tests every value of the format, every midpoint between neighbours, and the floats next to each of these points.
TEST_P(Float16, RoundsToNearestEvenAroundEveryValueAndMidpoint) {
  const auto& [name, format, decode, encode] = GetParam();
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    if (is_nan(bits, format) || is_infinite(bits, format)) continue;
    const double here = slow_decode(bits, format);
    // If `here` is the largest finite value, `next` is the pattern of infinity decoded as a finite number.
    const double next = slow_decode(static_cast<std::uint16_t>(bits + 1), format);
    for (const double point : {here, (here + next) / 2}) {
      const auto centre = static_cast<float>(point);
      for (const float value : {std::nextafter(centre, -std::numeric_limits<float>::infinity()), centre,
                                std::nextafter(centre, std::numeric_limits<float>::infinity())}) {
        ASSERT_EQ(encode(value), slow_encode(value, format))
            << name << " of float bits " << std::hex << std::bit_cast<std::uint32_t>(value);
      }
    }
  }
}

TEST_P(Float16, RandomFloats) {
  const auto& [name, format, decode, encode] = GetParam();
  constexpr std::uint64_t kSeed = 2024;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 2000000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(is_nan(encode(value), format)) << std::hex << bits;
    } else {
      ASSERT_EQ(encode(value), slow_encode(value, format)) << name << " of float bits " << std::hex << bits;
    }
  }
}

TEST_P(Float16, TheEdges) {
  const auto& [name, format, decode, encode] = GetParam();
  for (const float value : {0.0F, -0.0F, std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(),
                            std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::min(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), 65504.0F, 65519.0F, 65519.996F, 65520.0F}) {
    EXPECT_EQ(encode(value), slow_encode(value, format)) << value;
  }
  // A NaN must not become infinity, even if its payload is only in the bits that the conversion cuts off.
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU}) {
    EXPECT_TRUE(is_nan(encode(std::bit_cast<float>(bits)), format)) << std::hex << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Float16, ::testing::ValuesIn(kConversions),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(SlowFloat16, KnownPatterns) {  // checks the slow implementation itself
  EXPECT_EQ(slow_encode(1.0, kFp16), 0x3c00);
  EXPECT_EQ(slow_encode(65504.0, kFp16), 0x7bff);
  EXPECT_EQ(slow_encode(65520.0, kFp16), 0x7c00);
  EXPECT_EQ(slow_encode(std::ldexp(1.0, -24), kFp16), 0x0001);
  EXPECT_EQ(slow_encode(std::ldexp(1.0, -25), kFp16), 0x0000);  // a tie, rounded to even
  EXPECT_EQ(slow_encode(-2.0, kBf16), 0xc000);
  EXPECT_EQ(slow_encode(1.00390625, kBf16), 0x3f80);  // 1 + 2^-8, a tie, rounded to even
  EXPECT_EQ(slow_encode(1.01171875, kBf16), 0x3f82);  // 1 + 3 x 2^-8, a tie, rounded to even
}

}  // namespace
}  // namespace hvd::float16_test
