// Runs the element functions of our kernels on the host over every index and compares the results with the reference.
// The GPU's kernels use the same source. sums_test.cpp tests the sums over rows and the softmax.
#include "models/cudnn/kernels/element.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/base/hash.h"
#include "models/cudnn/kernels/norm_element.h"
#include "models/cudnn/kernels/pool_element.h"
#include "models/dropout.h"
#include "models/reference/ops.h"
#include "models/synthetic.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::kernels::element_test {
namespace {

using models::testing::random_values;
using reference::In;
using reference::Out;

template <class T>
constexpr DataType type_of() {
  if constexpr (std::is_same_v<T, Half>) return DataType::kF16;
  if constexpr (std::is_same_v<T, Bfloat>) return DataType::kBF16;
  return DataType::kF32;
}

/// Half the distance from 1 to the next larger number of the type.
template <class T>
constexpr double rounding() {
  if constexpr (std::is_same_v<T, Half>) return 0x1.0p-11;
  if constexpr (std::is_same_v<T, Bfloat>) return 0x1.0p-8;
  return 0x1.0p-24;
}

/// A tensor in the type under test, with a gap after each row, and its exact elements as doubles.
template <class T>
struct Tensor {
  Shape shape;
  std::int64_t pitch = 0;
  std::vector<Vector<T, 1>> memory;
  std::vector<double> values;

  Tensor(const Shape& of, std::int64_t gap) : shape(of), pitch(channels() + gap), memory(size()), values(count()) {}
  Tensor(const Shape& of, std::int64_t gap, std::uint64_t stream) : Tensor(of, gap) {
    const std::vector<double> drawn = random_values(shape.count(), stream);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      memory[at(i)].at[0] = from_float<T>(static_cast<float>(drawn[i]));
      values[i] = static_cast<double>(to_float(memory[at(i)].at[0]));
    }
  }
  [[nodiscard]] std::int64_t channels() const { return shape[shape.rank() - 1]; }
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(shape.count()); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(shape.count() / channels() * pitch); }
  [[nodiscard]] std::size_t at(std::size_t i) const {
    const auto c = static_cast<std::size_t>(channels());
    return i / c * static_cast<std::size_t>(pitch) + i % c;
  }
  Matrix matrix() {
    return {.data = memory.data(),
            .type = type_of<T>(),
            .rows = shape.count() / channels(),
            .channels = channels(),
            .pitch = pitch};
  }
  Image image() { return {.matrix = matrix(), .n = shape[0], .h = shape[1], .w = shape[2]}; }
  [[nodiscard]] In in() const { return {values, shape}; }
  Out out() { return {values, shape}; }
  /// Compares `memory` with `values`. Allows one rounding to T and the roundings of `terms` additions in fp32.
  void expect_near(const std::string& what, double terms) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double got = static_cast<double>(to_float(memory[at(i)].at[0]));
      const double bound = rounding<T>() * std::abs(values[i]) + terms * 0x1.0p-23 * (1 + std::abs(values[i]));
      ASSERT_NEAR(got, values[i], bound) << what << ", element " << i;
    }
  }
};

template <class Body>
void run(const Body& body, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

/// Calls a row body for every vector of a matrix.
template <class Body>
void run_rows(const Body& body, std::int64_t rows, std::int64_t channels) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t channel = 0; channel < channels; channel += Body::kWidth) {
      const Place place{row, channel};
      body.store(place, body.channels(channel), body.load(place));
    }
  }
}
template <class Body>
void run_rows(const Body& body, const Shape& of) {
  run_rows(body, of.count() / of[of.rank() - 1], of[of.rank() - 1]);
}

template <class T>
class ElementTest : public ::testing::Test {};
using Types = ::testing::Types<float, Half, Bfloat>;
TYPED_TEST_SUITE(ElementTest, Types);

const std::vector<Window> kWindows{
    {.kernel_h = 3,
     .kernel_w = 3,
     .stride_h = 2,
     .stride_w = 2,
     .pad_top = 1,
     .pad_bottom = 1,
     .pad_left = 1,
     .pad_right = 1},
    {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2},
    {.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2},
    {.kernel_h = 3, .kernel_w = 2, .stride_h = 1, .stride_w = 3, .pad_top = 2, .pad_left = 1}};

Shape pooled_shape(const Shape& x, const Window& w) {
  return {x[0], (x[1] + w.pad_top + w.pad_bottom - w.kernel_h) / w.stride_h + 1,
          (x[2] + w.pad_left + w.pad_right - w.kernel_w) / w.stride_w + 1, x[3]};
}

/// Runs a max pool with the body for any window and, if square, with the body for its size. Expects equal results.
template <class T>
void run_max_pool(const Window& window, Tensor<T>& x, Tensor<T>& y, std::vector<std::uint8_t>& where) {
  run_rows(MaxPoolBody<T, 1, 0>{window, x.image(), y.image(), where.data()}, y.shape);
  if (window.kernel_h != window.kernel_w) return;
  Tensor<T> again(y.shape, 0);
  std::vector<std::uint8_t> where_again(where.size());
  const auto run_sized = [&](const auto& body) { run_rows(body, y.shape); };
  if (window.kernel_h == 3) {
    run_sized(MaxPoolBody<T, 1, 3>{window, x.image(), again.image(), where_again.data()});
  } else {
    run_sized(MaxPoolBody<T, 1, 2>{window, x.image(), again.image(), where_again.data()});
  }
  EXPECT_EQ(where_again, where);
  for (std::size_t i = 0; i < y.count(); ++i) {
    EXPECT_EQ(to_float(again.memory[again.at(i)].at[0]), to_float(y.memory[y.at(i)].at[0])) << i;
  }
}

template <class T>
void run_max_pool_backward(const MaxPoolDiff& diff, Tensor<T>& dx) {
  run_rows(MaxPoolBackwardBody<T, 1>{diff, dx.image(), {}}, dx.shape);
  if (diff.window.kernel_h != diff.window.kernel_w) return;
  Tensor<T> again(dx.shape, 0);
  const auto run_tiles = [&](const auto& body) { run_rows(body, body.rows(), dx.channels()); };
  if (diff.window.kernel_h == 3) {
    run_tiles(MaxPoolBackwardTileBody<T, 1, 3, true>{diff, again.image(), {}});
  } else {
    run_tiles(MaxPoolBackwardTileBody<T, 1, 2, true>{diff, again.image(), {}});
  }
  for (std::size_t i = 0; i < dx.count(); ++i) {
    EXPECT_EQ(to_float(again.memory[again.at(i)].at[0]), to_float(dx.memory[dx.at(i)].at[0])) << i;
  }
}

TYPED_TEST(ElementTest, MaxPoolBothWays) {
  using T = TypeParam;
  for (const Window& window : kWindows) {
    Tensor<T> x({2, 7, 8, 8}, 4, 1), y(pooled_shape(x.shape, window), 8);
    std::vector<std::uint8_t> where(y.count());
    run_max_pool(window, x, y, where);
    reference::max_pool(window, x.in(), y.out());
    y.expect_near("max pool", 0);
    Tensor<T> dy(y.shape, 2, 2), dx(x.shape, 6);
    run_max_pool_backward({window, where.data(), dy.image(), {}}, dx);
    reference::max_pool_backward(window, x.in(), y.in(), dy.in(), dx.out());
    dx.expect_near("max pool backward", window.kernel_h * window.kernel_w);
    // If the pool reads a rectifier's output, the rectifier's backward may be applied to the diff of the pooled tensor.
    // The result is the same as with the rectifier's backward after the pool's backward.
    for (std::size_t i = 0; i < x.count(); ++i) {
      x.values[i] = std::max(x.values[i], 0.0);
      x.memory[x.at(i)].at[0] = from_float<T>(static_cast<float>(x.values[i]));
    }
    run_max_pool(window, x, y, where);
    reference::max_pool(window, x.in(), y.out());
    run_max_pool_backward({window, where.data(), dy.image(), y.matrix()}, dx);
    reference::max_pool_backward(window, x.in(), y.in(), dy.in(), dx.out());
    reference::relu_backward(x.in(), dx.in(), dx.out());
    dx.expect_near("rectifier and max pool backward", window.kernel_h * window.kernel_w);
  }
}

TYPED_TEST(ElementTest, AvgPoolBothWaysWithAnEpilogue) {
  using T = TypeParam;
  std::vector<Window> windows = kWindows;
  for (const int pad : {0, 1, 2}) windows.push_back({3, 3, 1, 1, pad, 1, 1, pad});
  for (const Window& window : windows) {
    Tensor<T> x({2, 27, 8, 8}, 0, 1), y(pooled_shape(x.shape, window), 8);
    Tensor<T> dy(y.shape, 2, 2), dx(x.shape, 6), other(x.shape, 4, 3);
    const Epilogue epilogue{.add = other.matrix(), .test = x.matrix(), .test_norm = {}};
    const auto expect = [&] {
      reference::avg_pool(window, x.in(), y.out());
      y.expect_near("average pool", window.kernel_h * window.kernel_w);
      reference::avg_pool_backward(window, dy.in(), dx.out());
      for (std::size_t i = 0; i < dx.count(); ++i) dx.values[i] = x.values[i] > 0 ? dx.values[i] + other.values[i] : 0;
      dx.expect_near("average pool backward", window.kernel_h * window.kernel_w + 1);
    };
    run_rows(AvgPoolBody<T, 1>{window, x.image(), y.image()}, y.shape);
    run_rows(AvgPoolBackwardBody<T, 1>{window, dy.image(), dx.image(), epilogue}, dx.shape);
    expect();
    if (window.stride_h != 1 || window.kernel_w != 3) continue;
    y = Tensor<T>(y.shape, 8);
    dx = Tensor<T>(dx.shape, 6);
    const AvgPoolStripBody<T, 1, false, false> forward{window, x.image(), y.image(), {}};
    const AvgPoolStripBody<T, 1, true, true> backward{window, dy.image(), dx.image(), epilogue};
    run_rows(forward, forward.rows(), y.channels());
    run_rows(backward, backward.rows(), dx.channels());
    expect();
  }
}

TYPED_TEST(ElementTest, GlobalAvgPoolBothWays) {
  using T = TypeParam;
  Tensor<T> x({3, 5, 4, 8}, 4, 1), y({3, 8}, 0);
  run_rows(GlobalAvgPoolBody<T, 1>{x.image(), y.matrix()}, y.shape);
  reference::global_avg_pool(x.in(), y.out());
  y.expect_near("global average", 20);
  Tensor<T> dy(y.shape, 0, 2), dx(x.shape, 4);
  run_rows(GlobalAvgPoolBackwardBody<T, 1>{dy.matrix(), dx.image(), {}}, dx.shape);
  reference::global_avg_pool_backward(dy.in(), dx.out());
  dx.expect_near("global average backward", 1);
}

/// The vectors of a batch norm over `channels`, filled with random values.
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
  const auto matrix = [](auto& memory) {  // rows of 16 channels and a gap of 8
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
  y.expect_near("sum of two batch norms", 64);  // large tolerance: values of some tens may cancel
  const Pointwise backward{
      .out = dx.matrix(), .inputs = 1, .input = {dy.matrix()}, .test = a.matrix(), .test_norm = first.norm()};
  run_rows(PointwiseBody<T, 1>{backward, {}}, dx.shape);
  for (std::size_t i = 0; i < dx.count(); ++i) {
    const double test = first.apply(a.values[i], i % 8);
    if (std::abs(test) < 1e-5) continue;  // near zero, rounding decides, so either result is right
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

/// Sums a term's two values per channel over all rows of a matrix of eight channels.
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
  // One pass over the rows makes the sums, with the same terms as in the GPU's kernels.
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
  // A sum has 36 additions in fp32 of squares of up to about ten.
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
  // The mask comes from the same batch norm in fp32, so that kernel and reference mask the same elements near zero.
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

// ---- Loss, update, input ----

TYPED_TEST(ElementTest, LossBackward) {
  using T = TypeParam;
  const Shape shape{3, 7};
  std::vector<double> logits = random_values(21, 1), probabilities(21);
  const std::vector<std::int32_t> labels{0, 6, 3};
  reference::softmax_cross_entropy({logits, shape}, labels, {probabilities, shape});
  const std::vector<float> given(probabilities.begin(), probabilities.end());
  Tensor<T> dlogits(shape, 1);
  const float loss_scale = 128;
  run(SoftmaxCrossEntropyBackwardBody<T>{given.data(), labels.data(), 0.4F / 3, &loss_scale, dlogits.matrix()}, 21);
  reference::softmax_cross_entropy_backward(0.4 * 128, {probabilities, shape}, labels, dlogits.out());
  dlogits.expect_near("loss backward", 20);
}

TYPED_TEST(ElementTest, SgdIsTheReferencesFormula) {
  using T = TypeParam;
  constexpr std::int64_t kCount = 192;
  const std::vector<std::uint8_t> decays{1, 0, 1};
  alignas(16) static std::array<float, kCount> w, m;
  alignas(16) static std::array<T, kCount> gradient, copied;
  const std::vector<double> drawn = random_values(3 * kCount, 6);
  std::vector<double> expected_w(kCount), expected_m(kCount);
  const StepScalars scalars{.learning_rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F, .gradient_scale = 4.0F};
  for (std::size_t i = 0; i < kCount; ++i) {
    w[i] = static_cast<float>(drawn[i]);
    m[i] = static_cast<float>(drawn[i + kCount]);
    gradient[i] = from_float<T>(static_cast<float>(drawn[i + 2 * kCount]));
    const double decay = decays[i / 64] != 0 ? static_cast<double>(scalars.weight_decay) : 0;
    const auto start = static_cast<double>(w[i]);
    const double g = 4.0 / 8 * static_cast<double>(to_float(gradient[i])) + decay * start;
    expected_m[i] = static_cast<double>(scalars.momentum) * static_cast<double>(m[i]) + g;
    expected_w[i] = start - static_cast<double>(scalars.learning_rate) * expected_m[i];
  }
  LossScale loss_scale{.scale = 8, .overflow = 1};
  const Sgd work{.weights = w.data(),
                 .momentum = m.data(),
                 .gradients = gradient.data(),
                 .gradient_type = type_of<T>(),
                 .copy = copied.data(),
                 .copy_type = type_of<T>(),
                 .decays = decays.data(),
                 .count = kCount,
                 .scalars = &scalars,
                 .loss_scale = &loss_scale};
  const std::array<float, kCount> before = w;
  run(SgdBody<T, T>{work}, kCount / 4);
  EXPECT_EQ(w, before);  // an overflow skips the update
  loss_scale.overflow = 0;
  run(SgdBody<T, T>{work}, kCount / 4);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(static_cast<double>(w[i]), expected_w[i], 8 * 0x1.0p-24 * (1 + std::abs(expected_w[i])));
    EXPECT_NEAR(static_cast<double>(m[i]), expected_m[i], 8 * 0x1.0p-24 * (1 + std::abs(expected_m[i])));
    EXPECT_EQ(to_float(copied[i]), to_float(from_float<T>(w[i])));
  }
}

TYPED_TEST(ElementTest, FindsWhatIsNotFinite) {
  using T = TypeParam;
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    alignas(16) std::array<T, 64> gradients;
    gradients.fill(from_float<T>(65504.0F));  // the largest finite number of fp16
    LossScale loss_scale;
    const FindOverflowBody<T> body{gradients.data(), &loss_scale};
    run(body, 64 / body.kVector);
    EXPECT_EQ(loss_scale.overflow, 0);
    gradients[43] = from_float<T>(bad);
    run(body, 64 / body.kVector);
    EXPECT_EQ(loss_scale.overflow, 1);
  }
}

TEST(LossScaleElement, HalvesAfterAnOverflowAndGrowsAfterGoodSteps) {
  LossScale now{.scale = 4, .overflow = 1, .good_steps = 1};
  const AdjustLossScaleBody adjust{&now, 2};
  const auto expect = [&](float scale, int good, int skipped) {
    adjust(0);
    EXPECT_EQ(now.scale, scale);
    EXPECT_EQ(now.good_steps, good);
    EXPECT_EQ(now.skipped, skipped);
    EXPECT_EQ(now.overflow, 0);
  };
  expect(2, 0, 1);
  expect(2, 1, 1);
  expect(4, 0, 1);
  now.overflow = 1;
  expect(2, 0, 2);
  now.overflow = 1;
  expect(1, 0, 3);
  now.overflow = 1;
  expect(1, 0, 4);  // the scale stays at least 1: an overflow without scaling has another cause
  now.scale = AdjustLossScaleBody::kLargest;
  expect(AdjustLossScaleBody::kLargest, 1, 4);
  expect(AdjustLossScaleBody::kLargest, 0, 4);
}

TEST(SyntheticElement, DrawsTheDataSetOfAllBackends) {
  constexpr std::int64_t kElements = 7 * 5 * 3, kSamples = 3;  // odd, so that samples begin inside a block of Philox
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{12345}}) {
    std::vector<float> expected(kElements * kSamples), images(expected.size(), -100);
    std::vector<std::int32_t> expected_labels(kSamples), labels(kSamples);
    models::synthetic_batch({.seed = 9, .image_elements = kElements, .classes = 1000}, first, expected,
                            expected_labels);
    run(SyntheticImagesBody<float>{9, Hasher().text("images").value(), &first, kElements, kElements * kSamples,
                                   images.data()},
        kElements * kSamples / 4 + 2);
    run(SyntheticLabelsBody{9, Hasher().text("labels").value(), &first, 1000, labels.data()}, kSamples);
    EXPECT_EQ(labels, expected_labels);
    for (std::size_t i = 0; i < images.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(images[i]), static_cast<double>(expected[i]), 1e-6) << i;
    }
  }
}

}  // namespace
}  // namespace hvd::models::cudnn::kernels::element_test
