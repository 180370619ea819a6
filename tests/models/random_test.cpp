// Tests everything drawn from the counter-based generator: initial weights, images, labels, dropout masks.
#include "models/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/models/testing.h"

namespace hvd::models::random_test {
namespace {

struct Moments {
  double mean = 0, deviation = 0;
};
Moments moments(std::span<const float> values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const float value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean, .deviation = std::sqrt(squares / count)};
}

TEST(FillNormal, IsStandardNormal) {
  std::vector<float> values(100'000);
  fill_normal(Philox(3, 4), 0, values);
  const auto [mean, deviation] = moments(values);
  // The tolerance is five standard errors: 1 / sqrt(n) for the mean, 1 / sqrt(2 n) for the standard deviation.
  EXPECT_NEAR(mean, 0, 5 / std::sqrt(1e5));
  EXPECT_NEAR(deviation, 1, 5 / std::sqrt(2e5));
  const auto beyond_two = std::count_if(values.begin(), values.end(), [](float v) { return std::abs(v) > 2; });
  EXPECT_NEAR(static_cast<double>(beyond_two), 4550, 5 * std::sqrt(4550.0));  // P(|x| > 2) = 0.0455
}

TEST(FillNormal, IsTheSameInAnyPieces) {
  std::vector<float> whole(41);
  fill_normal(Philox(3, 4), 0, whole);
  for (std::size_t first = 0; first < whole.size(); ++first) {
    for (std::size_t count = 0; count <= whole.size() - first; count += 5) {
      std::vector<float> piece(count);
      fill_normal(Philox(3, 4), first, piece);
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(piece[i], whole[first + i]);
    }
  }
}

std::vector<float> initial(const Parameter& parameter, const Shape& shape, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  initial_value(parameter, shape, seed, values);
  return values;
}

TEST(InitialValue, HasTheScaleOfItsRule) {
  const Shape conv{64, 3, 3, 32};  // fan in 288, fan out 576
  const double error = 5 / std::sqrt(2.0 * static_cast<double>(conv.count()));
  const auto deviation = [&](Init init) { return moments(initial({.name = "w", .init = init}, conv, 1)).deviation; };
  EXPECT_NEAR(deviation(Init::kHeNormal) / std::sqrt(2.0 / 288), 1, error);
  EXPECT_NEAR(deviation(Init::kNormal001) / 0.01, 1, error);
  // A uniform distribution on [-limit, limit] has the standard deviation limit / sqrt(3).
  EXPECT_NEAR(deviation(Init::kGlorotUniform) / std::sqrt(6.0 / (288 + 576) / 3), 1, error);
  for (const float v : initial({.name = "w", .init = Init::kZero}, {9}, 1)) EXPECT_EQ(v, 0);
  for (const float v : initial({.name = "w", .init = Init::kOne}, {9}, 1)) EXPECT_EQ(v, 1);
}

TEST(InitialValue, DependsOnSeedAndNameOnly) {
  const Shape shape{16, 16};
  EXPECT_EQ(initial({.name = "a"}, shape, 1), initial({.name = "a"}, shape, 1));
  EXPECT_NE(initial({.name = "a"}, shape, 1), initial({.name = "b"}, shape, 1));
  EXPECT_NE(initial({.name = "a"}, shape, 1), initial({.name = "a"}, shape, 2));
}

TEST(SyntheticBatch, SampleKIsTheSameOnAnyRank) {
  const SyntheticSpec spec{.seed = 5, .image_elements = 27, .classes = 10};
  std::vector<float> whole(8 * 27);
  std::vector<std::int32_t> labels(8);
  synthetic_batch(spec, 40, whole, labels);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::vector<float> part(2 * 27);
    std::vector<std::int32_t> part_labels(2);
    synthetic_batch(spec, 40 + 2 * rank, part, part_labels);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(rank * 2 * 27)));
    EXPECT_TRUE(
        std::equal(part_labels.begin(), part_labels.end(), labels.begin() + static_cast<std::ptrdiff_t>(rank * 2)));
  }
  std::vector<float> other(8 * 27);
  synthetic_batch({.seed = 6, .image_elements = 27, .classes = 10}, 40, other, labels);
  EXPECT_NE(other, whole);
}

TEST(SyntheticBatch, LabelsCoverTheClassesEvenly) {
  std::vector<float> images(10'000);
  std::vector<std::int32_t> labels(10'000);
  synthetic_batch({.seed = 1, .image_elements = 1, .classes = 7}, 0, images, labels);
  std::vector<int> counts(7);
  for (const std::int32_t label : labels) {
    ASSERT_GE(label, 0);
    ASSERT_LT(label, 7);
    ++counts[static_cast<std::size_t>(label)];
  }
  const double expected = 10'000.0 / 7;
  for (const int count : counts) EXPECT_NEAR(count, expected, 5 * std::sqrt(expected));
}

std::vector<std::uint8_t> mask(const DropoutAttr& attr, const DropoutPoint& point, std::size_t samples) {
  std::vector<std::uint8_t> keep(samples * point.features);
  dropout_mask(attr, point, keep);
  return keep;
}

TEST(DropoutMask, DropsAtItsRate) {
  for (const double rate : {0.0, 0.2, 0.5, 0.9}) {
    const auto keep = mask({.rate = rate}, {.features = 20'000}, 1);
    const auto kept = std::accumulate(keep.begin(), keep.end(), 0.0);
    EXPECT_NEAR(kept / 20'000, 1 - rate, 5 * std::sqrt(rate * (1 - rate) / 20'000)) << rate;
  }
  EXPECT_EQ(dropout_scale({.rate = 0.2}), 1.25);
}

TEST(DropoutMask, IsTheSameForAnySplitOfTheBatch) {
  const DropoutAttr attr{.rate = 0.5, .stream = 3};
  const std::size_t features = 13;  // 13 is not a multiple of the generator's block size
  const auto whole = mask(attr, {.seed = 1, .step = 9, .first_sample = 16, .features = features}, 8);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const auto part = mask(attr, {.seed = 1, .step = 9, .first_sample = 16 + 2 * rank, .features = features}, 2);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(rank * 2 * features)));
  }
}

TEST(DropoutMask, ChangesWithStepStreamAndSeed) {
  const DropoutPoint point{.seed = 1, .step = 0, .first_sample = 0, .features = 64};
  const auto base = mask({.stream = 0}, point, 1);
  EXPECT_NE(base, mask({.stream = 1}, point, 1));
  EXPECT_NE(base, mask({.stream = 0}, {.seed = 2, .features = 64}, 1));
  EXPECT_NE(base, mask({.stream = 0}, {.seed = 1, .step = 1, .features = 64}, 1));
}

TEST(HeapArena, IsZeroedAndAligned) {
  const HeapArena arena = make_heap_arena();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{100'000}}) {
    const auto block = arena.allocate(bytes);
    EXPECT_EQ(block.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 4096, 0U);
    for (const std::byte b : block) EXPECT_EQ(b, std::byte{0});
  }
  EXPECT_EQ(arena.blocks->size(), 3U);
}

}  // namespace
}  // namespace hvd::models::random_test
