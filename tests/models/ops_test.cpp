// Compares the reference operations with values computed by hand and with plain loops.
#include "tests/models/reference/ops.h"

#include <cmath>

#include "tests/models/testing.h"

namespace hvd::models::reference::ops_test {
namespace {

using testing::expect_error;
using testing::random_values;

using Values = std::vector<double>;

// Computes a convolution by its definition: adds one product at a time, for every element of the padded input.
Values plain_conv(const Window& w, const In& x, const In& k, const Shape& y) {
  Values out;
  for (std::int64_t n = 0; n < y[0]; ++n) {
    for (std::int64_t oh = 0; oh < y[1]; ++oh) {
      for (std::int64_t ow = 0; ow < y[2]; ++ow) {
        for (std::int64_t o = 0; o < y[3]; ++o) {
          double sum = 0;
          for (std::int64_t kh = 0; kh < w.kernel_h; ++kh) {
            for (std::int64_t kw = 0; kw < w.kernel_w; ++kw) {
              const std::int64_t ih = oh * w.stride_h + kh - w.pad_top;
              const std::int64_t iw = ow * w.stride_w + kw - w.pad_left;
              if (ih < 0 || iw < 0 || ih >= x.shape[1] || iw >= x.shape[2]) continue;
              for (std::int64_t i = 0; i < x.shape[3]; ++i) {
                const std::int64_t from = ((n * x.shape[1] + ih) * x.shape[2] + iw) * x.shape[3] + i;
                const std::int64_t weight = ((o * w.kernel_h + kh) * w.kernel_w + kw) * x.shape[3] + i;
                sum += x.data[static_cast<std::size_t>(from)] * k.data[static_cast<std::size_t>(weight)];
              }
            }
          }
          out.push_back(sum);
        }
      }
    }
  }
  return out;
}

TEST(ReferenceConv, EqualsItsDefinition) {
  struct Case {
    Window window;
    Shape x, y;
  };
  const Case cases[] = {
      {{.kernel_h = 3, .kernel_w = 3, .pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1},
       {2, 5, 6, 3},
       {2, 5, 6, 7}},
      {{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 3, .pad_bottom = 1, .pad_left = 2},
       {1, 6, 7, 5},
       {1, 3, 3, 4}},
      {{.kernel_h = 1, .kernel_w = 7, .pad_left = 3, .pad_right = 3}, {2, 4, 5, 2}, {2, 4, 5, 3}},
      {{.kernel_h = 7,
        .kernel_w = 7,
        .stride_h = 2,
        .stride_w = 2,
        .pad_top = 3,
        .pad_bottom = 3,
        .pad_left = 3,
        .pad_right = 3},
       {1, 4, 4, 3},
       {1, 2, 2, 9}},
      {{.stride_h = 2, .stride_w = 2}, {2, 5, 5, 6}, {2, 3, 3, 5}},
  };
  for (const Case& c : cases) {
    const Values x = random_values(c.x.count(), 1);
    const Shape weights{c.y[3], c.window.kernel_h, c.window.kernel_w, c.x[3]};
    const Values w = random_values(weights.count(), 2);
    Values y(static_cast<std::size_t>(c.y.count()));
    conv(c.window, {x, c.x}, {w, weights}, {}, {y, c.y});
    const Values expected = plain_conv(c.window, {x, c.x}, {w, weights}, c.y);
    // The two sums add the same K products, each of magnitude about 1, in different sequence. They differ by sqrt(K)
    // roundings of values of magnitude sqrt(K).
    const double k = static_cast<double>(weights.count() / c.y[3]);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 8 * k * 2.2e-16);
  }
}

TEST(ReferenceConv, AddsItsBias) {
  const Values x{1, 2}, w{3, 4}, bias{10, 20};
  Values y(4);
  conv({}, {x, {1, 1, 2, 1}}, {w, {2, 1, 1, 1}}, {bias, {2}}, {y, {1, 1, 2, 2}});
  EXPECT_EQ(y, (Values{13, 24, 16, 28}));
}

TEST(ReferenceFullyConnected, ByHand) {
  const Values x{1, 2, 3, 4}, w{1, 0, 0, 1, 1, 1}, bias{0, 0, 5};
  Values y(6);
  fully_connected({x, {2, 2}}, {w, {3, 2}}, {bias, {3}}, {y, {2, 3}});
  EXPECT_EQ(y, (Values{1, 2, 8, 3, 4, 12}));
}

TEST(ReferencePooling, PaddingCountsAsMinusInfinityAndIsLeftOutOfAverages) {
  const Window window{.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2, .pad_top = 1, .pad_left = 1};
  const Shape x_shape{1, 3, 3, 1}, y_shape{1, 2, 2, 1};
  const Values x{-1, -2, -3, -4, -5, -6, -7, -8, -9};
  Values y(4);
  max_pool(window, {x, x_shape}, {y, y_shape});
  EXPECT_EQ(y, (Values{-1, -2, -4, -5}));
  avg_pool(window, {x, x_shape}, {y, y_shape});
  EXPECT_EQ(y, (Values{-1, -2.5, -5.5, -7}));
}

TEST(ReferencePooling, TheFirstMaximumTakesTheDiff) {
  const Shape x_shape{1, 2, 2, 1}, y_shape{1, 1, 1, 1};
  const Values x{1, 3, 3, 3}, y{3}, dy{5};
  Values dx(4);
  max_pool_backward({.kernel_h = 2, .kernel_w = 2}, {x, x_shape}, {y, y_shape}, {dy, y_shape}, {dx, x_shape});
  EXPECT_EQ(dx, (Values{0, 5, 0, 0}));
}

TEST(ReferenceBatchNorm, ByHand) {
  const Values x{1, 3};  // mean 2, biased variance 1, unbiased variance 2
  const Values gamma{2}, beta{10};
  Values y(2), mean(1), inv_std(1), running_mean{0}, running_var{1};
  batch_norm({.epsilon = 3, .momentum = 0.25}, {x, {2, 1, 1, 1}}, {gamma, {1}}, {beta, {1}},
             {.y = {y, {2, 1, 1, 1}},
              .mean = {mean, {1}},
              .inv_std = {inv_std, {1}},
              .running_mean = {running_mean, {1}},
              .running_var = {running_var, {1}}});
  EXPECT_EQ(mean, Values{2});
  EXPECT_EQ(inv_std, Values{0.5});
  EXPECT_EQ(y, (Values{9, 11}));
  EXPECT_EQ(running_mean, Values{0.5});
  EXPECT_EQ(running_var, Values{0.75 * 1 + 0.25 * 2});
}

TEST(ReferenceConcat, JoinsAndSplitsChannels) {
  const Values a{1, 2, 3, 4}, b{5, 6};
  const Shape a_shape{1, 1, 2, 2}, b_shape{1, 1, 2, 1}, y_shape{1, 1, 2, 3};
  Values y(6);
  concat(std::vector<In>{{a, a_shape}, {b, b_shape}}, {y, y_shape});
  EXPECT_EQ(y, (Values{1, 2, 5, 3, 4, 6}));
  Values db(2);
  concat_backward({y, y_shape}, std::vector<Out>{{{}, a_shape}, {db, b_shape}});  // the first input gets no gradient
  EXPECT_EQ(db, b);
}

TEST(ReferenceLoss, IsTheMeanOfMinusLogProbability) {
  const Values logits{0, 0, 1000, 0};
  const std::vector<std::int32_t> labels{1, 0};
  Values probabilities(4);
  const double loss = softmax_cross_entropy({logits, {2, 2}}, labels, {probabilities, {2, 2}});
  EXPECT_DOUBLE_EQ(loss, std::log(2.0) / 2);  // the second sample has probability 1; exp(1000) must not overflow
  EXPECT_EQ(probabilities, (Values{0.5, 0.5, 1, 0}));
}

TEST(ReferenceLoss, RefusesALabelOutsideTheClasses) {
  const Values logits{0, 0, 0, 0};
  Values probabilities(4);
  for (const std::int32_t bad : {-1, 2}) {
    const std::vector<std::int32_t> labels{0, bad};
    expect_error(Errc::kInvalidArgument, {"label " + std::to_string(bad), "sample 1", "[0, 2)"}, [&] {
      softmax_cross_entropy({logits, {2, 2}}, labels, {probabilities, {2, 2}});
    });
  }
}

}  // namespace
}  // namespace hvd::models::reference::ops_test
