// Compares the element functions of pointwise operations and batch norms with the reference, for every index, on the
// host. The GPU's kernels use the same source. pool_element_test.cpp and update_element_test.cpp test the remaining
// element functions. sums_test.cpp and softmax_test.cpp test the kernels whose threads work together.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "engine/base/hash.h"
#include "models/cudnn/kernels/norm_element.h"
#include "models/cudnn/kernels/pointwise_element.h"
#include "models/dropout.h"
#include "tests/cudnn/element_tensor.h"

namespace hvd::models::cudnn::kernels::element_test {
namespace {

using element_testing::rounding;
using element_testing::run;
using element_testing::run_rows;
using element_testing::Tensor;
using element_testing::type_of;
using element_testing::Types;
using models::testing::random_values;

template <class T>
class ElementTest : public ::testing::Test {};
TYPED_TEST_SUITE(ElementTest, Types);

/// The four vectors of a batch norm with `channels` channels, filled with random values.
struct NormVectors {
  std::vector<float> mean, inv_std, gamma, beta;
  NormVectors(std::int64_t channels, std::uint64_t stream) {
    for (auto* vector : {&mean, &inv_std, &gamma, &beta}) {
      for (const double value : random_values(channels, stream++)) vector->push_back(static_cast<float>(value));
    }
    for (float& value : inv_std) value = 0.5F + std::abs(value);
  }
  [[nodiscard]] Norm norm() const { return {mean.data(), inv_std.data(), gamma.data(), beta.data()}; }
  [[nodiscard]] double apply(double x, std::size_t c) const {
    return (x - static_cast<double>(mean[c])) * static_cast<double>(inv_std[c]) * static_cast<double>(gamma[c]) +
           static_cast<double>(beta[c]);
  }
};

TYPED_TEST(ElementTest, VectorsDoWhatSingleElementsDo) {
  using T = TypeParam;
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  alignas(16) static std::array<T, 3 * 24> x, one, many;
  const std::vector<double> drawn = random_values(static_cast<std::int64_t>(x.size()), 4);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = from_float<T>(static_cast<float>(drawn[i]));
  const auto matrix = [](auto& memory) {  // rows of 16 channels, each followed by a gap of 8 elements
    return Matrix{.data = memory.data(), .type = type_of<T>(), .rows = 3, .channels = 16, .pitch = 24};
  };
  const NormVectors norm(16, 40), tested(16, 50);
  Pointwise work{.out = matrix(one),
                 .inputs = 2,
                 .input = {matrix(x), matrix(x)},
                 .norm = {norm.norm()},
                 .relu = true,
                 .test = matrix(x),
                 .test_norm = tested.norm()};
  run_rows(PointwiseBody<T, 1>{work, {}}, 3, 16);
  work.out = matrix(many);
  run_rows(PointwiseBody<T, kWide>{work, {}}, 3, 16);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(to_float(one[i]), to_float(many[i])) << i;
}

TYPED_TEST(ElementTest, PointwiseSumsNormalisesAndRectifies) {
  using T = TypeParam;
  const Shape shape{2, 3, 3, 8};
  Tensor<T> a(shape, 0, 1), b(shape, 8, 2), y(shape, 4), dy(shape, 4, 3), dx(shape, 0);
  const NormVectors first(8, 10), second(8, 20);
  Tensor<T> bias({1, 8}, 0, 4);
  const Pointwise forward{.out = y.matrix(),
                          .inputs = 2,
                          .input = {a.matrix(), b.matrix()},
                          .norm = {first.norm(), second.norm()},
                          .bias = bias.memory.data(),
                          .relu = true};
  run_rows(PointwiseBody<T, 1>{forward, {}}, y.shape);
  for (std::size_t i = 0; i < y.count(); ++i) {
    y.values[i] =
        std::max(first.apply(a.values[i], i % 8) + second.apply(b.values[i], i % 8) + bias.values[i % 8], 0.0);
  }
  y.expect_near("sum of two batch norms", 64);  // the tolerance is large because values of some tens may cancel
  const Pointwise backward{
      .out = dx.matrix(), .inputs = 1, .input = {dy.matrix()}, .test = a.matrix(), .test_norm = first.norm()};
  run_rows(PointwiseBody<T, 1>{backward, {}}, dx.shape);
  for (std::size_t i = 0; i < dx.count(); ++i) {
    const double test = first.apply(a.values[i], i % 8);
    if (std::abs(test) < 1e-5) continue;  // rounding may change the sign near zero, so both results are right
    ASSERT_EQ(static_cast<double>(to_float(dx.memory[dx.at(i)].at[0])), test > 0 ? dy.values[i] : 0.0) << i;
  }
}

TYPED_TEST(ElementTest, DropoutDrawsTheMaskOfAllBackends) {
  using T = TypeParam;
  constexpr std::uint64_t kSeed = 11, kStream = 3;
  const std::uint64_t step = 7, first = 5;
  const DropoutAttr attr{.rate = 0.3, .stream = kStream};
  for (const Shape& shape : {Shape{4, 10}, Shape{4, 2, 3, 10}}) {
    const std::int64_t features = shape.count() / shape[0];
    Tensor<T> x(shape, 0, 1), y(shape, 0);
    const DropoutBody dropout{.seed = kSeed,
                              .hash = Hasher().text("dropout").number(kStream).value(),
                              .dropped_below = static_cast<std::uint64_t>(attr.rate * 0x1.0p32),
                              .scale = static_cast<float>(dropout_scale(attr)),
                              .rows_per_sample = features / 10,
                              .step = &step,
                              .first_sample = &first,
                              .features = 10};
    Pointwise work{.out = y.matrix(), .inputs = 1, .input = {x.matrix()}};
    work.dropout.used = true;
    run_rows(PointwiseBody<T, 1>{work, dropout}, y.shape);
    std::vector<std::uint8_t> keep(y.count());
    dropout_mask(attr,
                 {.seed = kSeed, .step = step, .first_sample = first, .features = static_cast<std::uint64_t>(features)},
                 keep);
    reference::dropout(keep, dropout_scale(attr), x.in(), y.out());
    y.expect_near("dropout", 1);
  }
}

// ---- Batch norm: forward from sums, and both backward passes, compared with the reference ----

/// Sums the two values per channel that `term` gives, over all rows of a matrix with eight channels.
template <class Term>
void sum_over_rows(const Term& term, std::int64_t rows, std::vector<float>& first, std::vector<float>& second) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t channel = 0; channel < 8; ++channel) {
      float sums[2][1] = {};
      term.add(term.channels(channel), term.load(Place{row, channel}), sums);
      first[static_cast<std::size_t>(channel)] += sums[0][0];
      second[static_cast<std::size_t>(channel)] += sums[1][0];
    }
  }
}

TYPED_TEST(ElementTest, BatchNormFromSumsBothWays) {
  using T = TypeParam;
  const Shape shape{4, 3, 3, 8}, vector{8};
  constexpr BatchNormAttr kAttr{.epsilon = 1e-5, .momentum = 0.1};
  Tensor<T> x(shape, 4, 1), dy(shape, 8, 2), dx(shape, 0);
  NormVectors vectors(8, 30);
  std::vector<float> sum(8), square_sum(8), running_mean(8, 0.25F), running_var(8, 1.5F), a(8), b(8), c(8), dgamma(8),
      dbeta(8), dy_sum(8), dy_centred_sum(8);
  std::vector<T> scale(8), shift(8);
  const std::int64_t rows = shape.count() / 8;
  // Makes both sums in one pass over the rows. The terms are those of the GPU's kernels.
  sum_over_rows(StatisticsTerm<T, 1>{x.matrix()}, rows, sum, square_sum);
  run(NormFinalizeBody<T>{{.sum = sum.data(),
                           .square_sum = square_sum.data(),
                           .gamma = vectors.gamma.data(),
                           .beta = vectors.beta.data(),
                           .running_mean = running_mean.data(),
                           .running_var = running_var.data(),
                           .mean = vectors.mean.data(),
                           .inv_std = vectors.inv_std.data(),
                           .scale = scale.data(),
                           .shift = shift.data(),
                           .type = type_of<T>(),
                           .channels = 8,
                           .count = rows,
                           .epsilon = 1e-5F,
                           .momentum = 0.1F}},
      8);
  const auto doubles = [](const std::vector<float>& from) { return std::vector<double>(from.begin(), from.end()); };
  const std::vector<double> gamma = doubles(vectors.gamma), beta = doubles(vectors.beta);
  std::vector<double> y(x.count()), mean(8), inv_std(8), expected_mean(8, 0.25), expected_var(8, 1.5);
  reference::batch_norm(kAttr, x.in(), {gamma, vector}, {beta, vector},
                        {.y = {y, shape},
                         .mean = {mean, vector},
                         .inv_std = {inv_std, vector},
                         .running_mean = {expected_mean, vector},
                         .running_var = {expected_var, vector}});
  // A sum has 36 additions in fp32. The terms are squares, each at most about ten.
  constexpr double kBound = 36 * 0x1.0p-23 * 10;
  for (std::size_t k = 0; k < 8; ++k) {
    EXPECT_NEAR(static_cast<double>(vectors.mean[k]), mean[k], kBound);
    EXPECT_NEAR(static_cast<double>(vectors.inv_std[k]), inv_std[k], kBound * inv_std[k]);
    EXPECT_NEAR(static_cast<double>(running_mean[k]), expected_mean[k], kBound);
    EXPECT_NEAR(static_cast<double>(running_var[k]), expected_var[k], kBound);
    EXPECT_NEAR(static_cast<double>(to_float(scale[k])), gamma[k] * inv_std[k],
                (rounding<T>() + kBound) * std::abs(gamma[k] * inv_std[k]) + kBound);
    const double expected_shift = beta[k] - mean[k] * gamma[k] * inv_std[k];
    EXPECT_NEAR(static_cast<double>(to_float(shift[k])), expected_shift,
                rounding<T>() * std::abs(expected_shift) + kBound);
  }
  const NormBackward work{.x = x.matrix(),
                          .dy = dy.matrix(),
                          .norm = vectors.norm(),
                          .rectified = true,
                          .dgamma = dgamma.data(),
                          .dbeta = dbeta.data(),
                          .gradient_type = DataType::kF32,
                          .a = a.data(),
                          .b = b.data(),
                          .c = c.data()};
  sum_over_rows(NormBackwardTerm<T, 1, true>{work}, rows, dy_sum, dy_centred_sum);
  const NormBackwardFinalizeBody<float> finalize{work};
  for (std::size_t k = 0; k < 8; ++k) finalize(static_cast<std::int64_t>(k), dy_sum[k], dy_centred_sum[k]);
  run_rows(NormBackwardApplyBody<T, 1, true>{work, dx.matrix()}, dx.shape);
  // Computes the mask with the same batch norm in fp32 as the kernel, so that rounding near zero makes no difference.
  std::vector<double> masked(dy.values);
  for (std::size_t i = 0; i < masked.size(); ++i) {
    const float at = to_float(x.memory[x.at(i)].at[0]);
    if (!(NormAt<1>(work.norm, static_cast<std::int64_t>(i % 8))(0, at) > 0)) masked[i] = 0;
  }
  std::vector<double> expected_dgamma(8), expected_dbeta(8);
  reference::batch_norm_backward({.x = x.in(),
                                  .gamma = {gamma, vector},
                                  .mean = {mean, vector},
                                  .inv_std = {inv_std, vector},
                                  .dy = {masked, shape}},
                                 dx.out(), {expected_dgamma, vector}, {expected_dbeta, vector});
  for (std::size_t k = 0; k < 8; ++k) {
    EXPECT_NEAR(static_cast<double>(dgamma[k]), expected_dgamma[k], 2 * kBound);
    EXPECT_NEAR(static_cast<double>(dbeta[k]), expected_dbeta[k], kBound);
  }
  dx.expect_near("batch norm backward", 36 * 10);
}

}  // namespace
}  // namespace hvd::models::cudnn::kernels::element_test
