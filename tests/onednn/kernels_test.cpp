// Compares our own kernels at every vector level of this processor, bit for bit, with plain code that computes one
// element at a time. The counts leave incomplete vectors and incomplete mask words; one count needs several threads.
#include "models/onednn/kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/float16.h"
#include "models/onednn/threads.h"

namespace hvd::models::onednn::kernels_test {
namespace {

/// Elements of one type, which are read and written as fp32.
class Elements {
 public:
  Elements(DataType type, std::size_t count) : type_(type), wide_(count), half_(count) {}
  void* data() { return type_ == DataType::kF32 ? static_cast<void*>(wide_.data()) : half_.data(); }
  [[nodiscard]] float at(std::size_t i) const { return type_ == DataType::kF32 ? wide_[i] : bf16_to_float(half_[i]); }
  void set(std::size_t i, float value) {
    if (type_ == DataType::kF32) {
      wide_[i] = value;
    } else {
      half_[i] = float_to_bf16(value);
    }
  }
  [[nodiscard]] std::size_t size() const { return wide_.size(); }

 private:
  DataType type_;
  std::vector<float> wide_;
  std::vector<std::uint16_t> half_;
};

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// Random numbers, of which some are zeros of both signs, infinite, denormal or huge. `nan`: some are NaN.
Elements numbers(DataType type, std::size_t count, unsigned seed, bool nan = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::array<float, 7> special{
      0.0F, -0.0F, kInfinity, -kInfinity, std::ldexp(1.0F, -130), 3.3e38F, std::numeric_limits<float>::quiet_NaN()};
  Elements made(type, count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto pick = static_cast<std::size_t>(random() % 64);
    made.set(i, pick < special.size() - (nan ? 0 : 1) ? special.at(pick) : normal(random));
  }
  return made;
}

class Kernels : public ::testing::TestWithParam<std::tuple<VectorLevel, DataType>> {
 protected:
  [[nodiscard]] static VectorLevel level() { return std::get<0>(GetParam()); }
  [[nodiscard]] static DataType type() { return std::get<1>(GetParam()); }

  /// Compares `got` with expected(i), rounded to the type.
  template <class Expected>
  static void expect_bits(const Elements& got, const Expected& expected) {
    Elements element(type(), 1);
    for (std::size_t i = 0; i < got.size(); ++i) {
      element.set(0, expected(i));
      if (std::isnan(element.at(0))) {
        ASSERT_TRUE(std::isnan(got.at(i))) << "element " << i << " of " << got.size();
      } else {
        ASSERT_EQ(bits(got.at(i)), bits(element.at(0))) << "element " << i << " of " << got.size();
      }
    }
  }

  static constexpr std::array<std::size_t, 8> kCounts{1, 31, 63, 64, 65, 127, 1000, 50001};
  const ThreadScope threads_{2};
};

bool bit_of(const std::vector<std::uint64_t>& mask, std::size_t i) { return (mask[i / 64] >> (i % 64) & 1U) != 0; }

TEST_P(Kernels, AddReluKeepsThePositiveSumsAndTheirMask) {
  for (const std::size_t count : kCounts) {
    Elements a = numbers(type(), count, 1, true), b = numbers(type(), count, 2, true), y(type(), count);
    std::vector<std::uint64_t> mask((count + 63) / 64, ~std::uint64_t{0});
    const auto sum = [&](std::size_t i) { return a.at(i) + b.at(i); };
    add_relu(type(), a.data(), b.data(), y.data(), reinterpret_cast<std::byte*>(mask.data()), count, level());
    expect_bits(y, [&](std::size_t i) { return sum(i) > 0 ? sum(i) : 0.0F; });
    for (std::size_t i = 0; i < mask.size() * 64; ++i) ASSERT_EQ(bit_of(mask, i), i < count && sum(i) > 0) << i;

    add_relu(type(), a.data(), b.data(), a.data(), reinterpret_cast<std::byte*>(mask.data()), count, level());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(bits(a.at(i)), bits(y.at(i))) << "in place, element " << i;
  }
}

TEST_P(Kernels, SumsKeepAllOrMaskedOrPositiveElements) {
  for (const std::size_t count : kCounts) {
    for (const std::size_t summands : {std::size_t{1}, std::size_t{2}, std::size_t{3}, kMaxSummands}) {
      std::vector<Elements> parts;
      std::vector<const void*> data;
      for (std::size_t p = 0; p < summands; ++p)
        parts.push_back(numbers(type(), count, 10 + static_cast<unsigned>(p), true));
      for (Elements& part : parts) data.push_back(part.data());
      const std::vector<Elements> before = parts;
      const auto sum = [&](std::size_t i) {
        float total = before[0].at(i);
        for (std::size_t p = 1; p < summands; ++p) total += before[p].at(i);
        return total;
      };
      Elements positive = numbers(type(), count, 3, true), out(type(), count);
      std::vector<std::uint64_t> mask((count + 63) / 64);
      std::mt19937_64 random(4);
      for (std::uint64_t& word : mask) word = random();

      masked_sum(type(), data, {}, out.data(), count, level());
      expect_bits(out, sum);
      masked_sum(type(), data, {.positive = positive.data()}, out.data(), count, level());
      expect_bits(out, [&](std::size_t i) { return positive.at(i) > 0 ? sum(i) : 0.0F; });
      // The sum replaces its last part.
      masked_sum(type(), data, {.mask = reinterpret_cast<const std::byte*>(mask.data())}, parts.back().data(), count,
                 level());
      expect_bits(parts.back(), [&](std::size_t i) { return bit_of(mask, i) ? sum(i) : 0.0F; });
    }
  }
}

TEST_P(Kernels, AddAndRelu) {
  for (const std::size_t count : kCounts) {
    Elements a = numbers(type(), count, 1), b = numbers(type(), count, 2), y(type(), count);
    add(type(), a.data(), b.data(), y.data(), count, level());
    for (std::size_t i = 0; i < count; ++i) {
      if (std::isnan(a.at(i) + b.at(i))) b.set(i, 1);  // infinity - infinity: add() may round a NaN to another NaN
    }
    add(type(), a.data(), b.data(), y.data(), count, level());
    expect_bits(y, [&](std::size_t i) { return a.at(i) + b.at(i); });
    relu(type(), a.data(), y.data(), count, level());
    expect_bits(y, [&](std::size_t i) { return a.at(i) > 0 ? a.at(i) : 0.0F; });
  }
}

TEST_P(Kernels, Dropout) {
  for (const std::size_t count : kCounts) {
    Elements x = numbers(type(), count, 1), y(type(), count);
    std::vector<std::uint8_t> keep(count);
    for (std::size_t i = 0; i < count; ++i) keep[i] = i % 3 != 0;
    dropout(type(), x.data(), keep, 1.25F, y.data(), level());
    expect_bits(y, [&](std::size_t i) { return keep[i] != 0 ? x.at(i) * 1.25F : 0.0F; });
  }
}

// With fused multiply-adds, which the higher levels have, the results would differ.
TEST_P(Kernels, SgdRoundsEveryProductAndSum) {
  const SgdFactors factors{.learning_rate = 0.01F, .momentum = 0.9F, .decay = 1e-4F, .scale = 0.3F};
  for (const std::size_t count : kCounts) {
    Elements gradient = numbers(type(), count, 1);
    Elements weight = numbers(DataType::kF32, count, 2), momentum = numbers(DataType::kF32, count, 3);
    const Elements old_weight = weight, old_momentum = momentum;
    auto* w = static_cast<float*>(weight.data());
    auto* m = static_cast<float*>(momentum.data());
    sgd(type(), {w, m, gradient.data()}, factors, count, level());
    for (std::size_t i = 0; i < count; ++i) {
      volatile float scaled = factors.scale * gradient.at(i), decayed = factors.decay * old_weight.at(i);
      volatile float kept = factors.momentum * old_momentum.at(i), total = scaled + decayed, moved = kept + total;
      volatile float step = factors.learning_rate * moved, expected = old_weight.at(i) - step;
      if (std::isnan(expected)) continue;
      ASSERT_EQ(bits(m[i]), bits(moved)) << "element " << i << " of " << count;
      ASSERT_EQ(bits(w[i]), bits(expected)) << "element " << i << " of " << count;
    }
  }
}

TEST_P(Kernels, Conversions) {
  for (const std::size_t count : kCounts) {
    Elements wide = numbers(DataType::kF32, count, 1), back(DataType::kF32, count);
    std::vector<std::uint16_t> half(count);
    to_bf16(static_cast<const float*>(wide.data()), half.data(), count, level());
    to_f32(half.data(), static_cast<float*>(back.data()), count, level());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(half[i], float_to_bf16(wide.at(i))) << i;
      ASSERT_EQ(bits(back.at(i)), bits(bf16_to_float(half[i]))) << i;
    }
  }
}

// tests/onednn/mean_test.cpp compares the means with their definition.
TEST_P(Kernels, MeansHaveTheBitsOfTheLowestLevel) {
  const Pixels shape{.images = 2, .height = 9, .width = 7, .channels = 37};
  Elements x = numbers(DataType::kBF16, shape.images * shape.height * shape.width * shape.channels, 1);
  std::vector<std::uint16_t> expected(x.size()), got(x.size());
  const auto* from = static_cast<const std::uint16_t*>(x.data());
  mean_3x3(from, expected.data(), shape, VectorLevel::kBase);
  mean_3x3(from, got.data(), shape, level());
  EXPECT_EQ(got, expected);
  mean_3x3_backward(from, expected.data(), shape, VectorLevel::kBase);
  mean_3x3_backward(from, got.data(), shape, level());
  EXPECT_EQ(got, expected);
}

INSTANTIATE_TEST_SUITE_P(, Kernels,
                         ::testing::Combine(::testing::ValuesIn(available_levels()),
                                            ::testing::Values(DataType::kF32, DataType::kBF16)),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) + "_" +
                                  (std::get<1>(test.param) == DataType::kF32 ? "fp32" : "bf16");
                         });

}  // namespace
}  // namespace hvd::models::onednn::kernels_test
