// Compares reduction kernels and index arithmetic with values computed independently.
#include "engine/comm/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/base/float16.h"
#include "engine/comm/chunks.h"
#include "engine/comm/layout.h"

namespace hvd::comm::reduce_test {
namespace {

/// The parameter is the vector level.
class Reduce : public ::testing::TestWithParam<VectorLevel> {
 protected:
  template <class T>
  static std::vector<T> reduce(const std::vector<std::vector<T>>& inputs, DataType dtype, ReduceOp op,
                               int divisor = 1) {
    std::vector<const std::byte*> from;
    for (const auto& input : inputs) from.push_back(reinterpret_cast<const std::byte*>(input.data()));
    std::vector<T> out(inputs[0].size());
    const std::array<std::byte*, 1> to{reinterpret_cast<std::byte*>(out.data())};
    reduce_many(from, to, out.size(), dtype, op, divisor, GetParam());
    return out;
  }
};

float wide(std::uint16_t half, DataType type) {
  return type == DataType::kF16 ? fp16_to_float(half) : bf16_to_float(half);
}
std::uint16_t narrow(float value, DataType type) {
  return type == DataType::kF16 ? float_to_fp16(value) : float_to_bf16(value);
}

/// Random numbers of both signs, for the floating-point types without NaN.
std::vector<std::byte> numbers(DataType type, std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count * size_of(type));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = normal(random);
    const auto put = [&](auto number) { std::memcpy(bytes.data() + i * sizeof number, &number, sizeof number); };
    if (type == DataType::kF64) put(value);
    if (type == DataType::kF32) put(static_cast<float>(value));
    if (type == DataType::kF16 || type == DataType::kBF16) put(narrow(static_cast<float>(value), type));
  }
  return bytes;
}

TEST_P(Reduce, HandComputedValues) {
  EXPECT_EQ(reduce<float>({{1, -2, 3}, {4, 5, -6}}, DataType::kF32, ReduceOp::kSum), (std::vector<float>{5, 3, -3}));
  EXPECT_EQ(reduce<float>({{1, -2, 3}, {4, 5, -6}}, DataType::kF32, ReduceOp::kAverage, 2),
            (std::vector<float>{2.5, 1.5, -1.5}));
  EXPECT_EQ(reduce<double>({{1, -2}, {4, 5}, {0, 9}}, DataType::kF64, ReduceOp::kMax), (std::vector<double>{4, 9}));
  EXPECT_EQ(reduce<std::int32_t>({{7, -7}, {0, 0}}, DataType::kI32, ReduceOp::kAverage, 2),
            (std::vector<std::int32_t>{3, -3}));
  EXPECT_EQ(reduce<std::int64_t>({{1LL << 40}, {-5}}, DataType::kI64, ReduceOp::kMin), (std::vector<std::int64_t>{-5}));
  EXPECT_EQ(reduce<std::uint8_t>({{200}, {100}}, DataType::kU8, ReduceOp::kSum), (std::vector<std::uint8_t>{44}));
}

TEST_P(Reduce, ProductsAndNarrowIntegers) {
  EXPECT_EQ(reduce<float>({{1.5F, -2}, {4, 0.5F}, {2, 3}}, DataType::kF32, ReduceOp::kProduct),
            (std::vector<float>{12, -3}));
  // 3 * 1.0078125 = 3.0234375 is halfway between the bf16 values 3.015625 and 3.03125, and is rounded to even.
  EXPECT_EQ(reduce<std::uint16_t>({{0x4040}, {0x3f81}}, DataType::kBF16, ReduceOp::kProduct),
            (std::vector<std::uint16_t>{0x4042}));
  EXPECT_EQ(reduce<std::int8_t>({{100, -100}, {100, -100}}, DataType::kI8, ReduceOp::kSum),
            (std::vector<std::int8_t>{-56, 56}));
  EXPECT_EQ(reduce<std::int8_t>({{-7, 127}, {0, -1}}, DataType::kI8, ReduceOp::kAverage, 2),
            (std::vector<std::int8_t>{-3, 63}));
  EXPECT_EQ(reduce<std::int16_t>({{300}, {-300}}, DataType::kI16, ReduceOp::kProduct),
            (std::vector<std::int16_t>{-24464}));  // -90000 + 65536
  EXPECT_EQ(reduce<std::int16_t>({{-300, 5}, {7, 5}}, DataType::kI16, ReduceOp::kMin),
            (std::vector<std::int16_t>{-300, 5}));
}

TEST_P(Reduce, IntegersWrapWithoutUndefinedBehaviour) {
  const auto most = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduce<std::int32_t>({{most}, {1}}, DataType::kI32, ReduceOp::kSum),
            (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min()}));
  const auto most64 = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduce<std::int64_t>({{most64}, {1}}, DataType::kI64, ReduceOp::kSum),
            (std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min()}));
}

// One input with divisor 1 is only loaded and stored. All 65536 patterns must survive; a NaN may become another NaN.
TEST_P(Reduce, EveryHalfPrecisionPatternSurvivesConversion) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const DataType type : {DataType::kF16, DataType::kBF16}) {
    const auto got = reduce<std::uint16_t>({all}, type, ReduceOp::kSum);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(got[i], narrow(wide(all[i], type), type)) << i;
  }
}

// Sums of many pairs cover rounding ties, subnormal results and infinite results of the vectorised store.
TEST_P(Reduce, HalfPrecisionSumsRoundLikeTheScalarConversions) {
  std::vector<std::uint16_t> a, b;
  std::uint32_t state = 12345;
  for (int i = 0; i < 300000; ++i) {
    state = state * 1664525U + 1013904223U;
    a.push_back(static_cast<std::uint16_t>(state >> 16));
    state = state * 1664525U + 1013904223U;
    // Half of the pairs have close exponents, so that ties and cancellations are common.
    b.push_back(i % 2 == 0 ? static_cast<std::uint16_t>(state >> 16)
                           : static_cast<std::uint16_t>((a.back() ^ 0x8000U) + (state >> 30)));
  }
  for (const DataType type : {DataType::kF16, DataType::kBF16}) {
    const auto got = reduce<std::uint16_t>({a, b}, type, ReduceOp::kSum);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const float sum = wide(a[i], type) + wide(b[i], type);
      if (std::isnan(sum)) {
        EXPECT_TRUE(std::isnan(wide(got[i], type)));
      } else {
        ASSERT_EQ(got[i], narrow(sum, type)) << i;
      }
    }
  }
}

TEST_P(Reduce, OrderIsLeftToRightAndOutputsMayBeInputs) {
  // (1e8 + 1) - 1e8 loses the 1 in fp32; 1e8 - 1e8 + 1 keeps it.
  EXPECT_EQ(reduce<float>({{1e8F}, {1.0F}, {-1e8F}}, DataType::kF32, ReduceOp::kSum)[0], 0.0F);
  EXPECT_EQ(reduce<float>({{1e8F}, {-1e8F}, {1.0F}}, DataType::kF32, ReduceOp::kSum)[0], 1.0F);
  for (const std::size_t count : {1U, 63U, 1024U, 5000U}) {
    std::vector<float> a(count, 1.0F), b(count, 2.0F), c(count, 4.0F);
    const auto bytes = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
    const std::array<std::byte*, 3> outputs{bytes(a), bytes(b), bytes(c)};
    const std::array<const std::byte*, 3> inputs{bytes(a), bytes(b), bytes(c)};
    reduce_many(inputs, outputs, count, DataType::kF32, ReduceOp::kSum, 1, GetParam());
    EXPECT_EQ(a, std::vector<float>(count, 7.0F));
    EXPECT_EQ(b, a);
    EXPECT_EQ(c, a);
  }
}

// The counts leave incomplete vectors and tiles.
TEST_P(Reduce, EveryTypeAndOperationHasTheBitsOfTheLowestLevel) {
  std::mt19937 random(1);
  for (const DataType type : {DataType::kF32, DataType::kF64, DataType::kF16, DataType::kBF16, DataType::kI32,
                              DataType::kI64, DataType::kU8, DataType::kI8, DataType::kI16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const std::size_t count : {1U, 63U, 1500U}) {
        std::array<std::vector<std::byte>, 3> memory;
        for (std::vector<std::byte>& input : memory) input = numbers(type, count, random);
        const std::array<const std::byte*, 3> inputs{memory[0].data(), memory[1].data(), memory[2].data()};
        std::vector<std::byte> expected(memory[0].size()), got(expected.size());
        const std::array<std::byte*, 1> to_expected{expected.data()}, to_got{got.data()};
        const int divisor = op == ReduceOp::kAverage ? 3 : 1;
        reduce_many(inputs, to_expected, count, type, op, divisor, VectorLevel::kBase);
        reduce_many(inputs, to_got, count, type, op, divisor, GetParam());
        EXPECT_EQ(got, expected) << name(type) << " " << count;
      }
    }
  }
}

TEST_P(Reduce, ConversionsAreThoseOfSingleNumbers) {
  std::mt19937 random(2);
  std::vector<std::uint32_t> patterns(50001);
  for (std::uint32_t& pattern : patterns) pattern = random();
  for (const DataType type : {DataType::kF16, DataType::kBF16}) {
    std::vector<std::uint16_t> half(patterns.size());
    std::vector<float> back(patterns.size());
    convert(reinterpret_cast<std::byte*>(half.data()), type, reinterpret_cast<const std::byte*>(patterns.data()),
            DataType::kF32, half.size(), GetParam());
    convert(reinterpret_cast<std::byte*>(back.data()), DataType::kF32, reinterpret_cast<const std::byte*>(half.data()),
            type, half.size(), GetParam());
    for (std::size_t i = 0; i < half.size(); ++i) {
      const auto from = std::bit_cast<float>(patterns[i]);
      if (std::isnan(from)) {
        ASSERT_TRUE(std::isnan(wide(half[i], type)) && std::isnan(back[i])) << i;
      } else {
        ASSERT_EQ(half[i], narrow(from, type)) << i;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(wide(half[i], type))) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Reduce, ::testing::ValuesIn(available_levels()),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(Chunks, CoverCountsAboveTwoToThe31WithIntSizedPieces) {
  constexpr std::size_t kLimit = std::size_t{1} << 30;
  for (const std::size_t total : {(std::size_t{1} << 31) + 5, (std::size_t{1} << 33), std::size_t{3}, std::size_t{0}}) {
    std::size_t next = 0;
    for_each_chunk(total, kLimit, [&](Range range) {
      EXPECT_EQ(range.begin, next);
      EXPECT_GT(range.count, 0U);
      EXPECT_LE(range.count, static_cast<std::size_t>(std::numeric_limits<int>::max()));
      next = range.end();
    });
    EXPECT_EQ(next, total);
    EXPECT_EQ(chunk_count(total, kLimit), (total + kLimit - 1) / kLimit);
  }
}

TEST(Chunks, SharesPartitionAndAlign) {
  for (const std::size_t total : {0UL, 1UL, 63UL, 64UL, 1000UL, 1000003UL, (1UL << 33) + 7}) {
    for (const std::size_t parts : {1UL, 2UL, 3UL, 7UL, 512UL}) {
      std::size_t next = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        const Range share = share_of(total, parts, i, 64);
        EXPECT_EQ(share.begin, next);
        EXPECT_EQ(share.begin % 64, 0U);
        next = share.end();
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(Layout, NumbersNodesByLowestRankWhateverTheirIds) {
  const Layout layout(2, {9, 4, 9, 4, 4}, {"a", "b", "a", "b", "b"});
  EXPECT_EQ(layout.node_of, (std::vector<int>{0, 1, 0, 1, 1}));
  EXPECT_EQ(layout.members, (std::vector<std::vector<int>>{{0, 2}, {1, 3, 4}}));
  EXPECT_EQ(layout.topology.node, 0);
  EXPECT_EQ(layout.topology.local_rank, 1);
  EXPECT_EQ(layout.topology.local_size, 2);
  EXPECT_EQ(layout.min_local_size, 2);
  EXPECT_EQ(layout.max_local_size, 3);
  EXPECT_EQ(layout.describe(4), "rank 4 (host b)");
}

}  // namespace
}  // namespace hvd::comm::reduce_test
