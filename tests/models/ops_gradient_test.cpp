// Compares every backward operation with central finite differences of its forward operation, in double precision. The
// differentiated function is f = sum of r * y with random r, so dy = r.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/models/finite_difference.h"
#include "tests/models/reference/ops.h"
#include "tests/models/testing.h"

namespace hvd::models::reference::ops_gradient_test {
namespace {

using testing::expect_gradient;
using testing::random_values;
using testing::Scalar;

using Values = std::vector<double>;

Values zeros(const Shape& shape) { return Values(static_cast<std::size_t>(shape.count()), 0.0); }

Scalar weighted_sum(const Values& r, const Values& y) {
  Scalar sum;
  for (std::size_t i = 0; i < y.size(); ++i) {
    sum.value += r[i] * y[i];
    sum.magnitude += std::abs(r[i]) * std::max(1.0, std::abs(y[i]));
  }
  return sum;
}

// Returns distinct values in random order, at least 0.05 apart. A finite-difference step changes no maximum and no
// sign.
Values well_separated(const Shape& shape, std::uint64_t stream) {
  Values values = zeros(shape);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 0.05 * (static_cast<double>(i) - 0.5 * static_cast<double>(values.size()) + 0.25);
  const Philox random(11, stream);
  for (std::size_t i = values.size() - 1; i > 0; --i) std::swap(values[i], values[random.block(i)[0] % (i + 1)]);
  return values;
}

struct WindowCase {
  const char* name;
  Window window;
  Shape x, y;
};

// The cases cover strides, padding on only some sides, flat and tall kernels, and images that the windows do not fill.
const WindowCase kWindows[] = {
    {"same 3x3",
     {.kernel_h = 3, .kernel_w = 3, .pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1},
     {2, 4, 5, 3},
     {2, 4, 5, 0}},
    {"asymmetric padding, uneven stride",
     {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 3, .pad_bottom = 1, .pad_left = 2},
     {1, 6, 7, 2},
     {1, 3, 3, 0}},
    {"1x7", {.kernel_h = 1, .kernel_w = 7, .pad_left = 3, .pad_right = 3}, {1, 3, 5, 2}, {1, 3, 5, 0}},
    {"7x1", {.kernel_h = 7, .kernel_w = 1, .pad_top = 3, .pad_bottom = 3}, {1, 5, 3, 2}, {1, 5, 3, 0}},
    {"1x1 stride 2", {.stride_h = 2, .stride_w = 2}, {2, 5, 4, 3}, {2, 3, 2, 0}},
    {"3x3 stride 2, remainder",
     {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2},
     {1, 8, 6, 2},
     {1, 3, 2, 0}},
    {"5x5 stride 3", {.kernel_h = 5, .kernel_w = 5, .stride_h = 3, .stride_w = 3}, {1, 8, 8, 1}, {1, 2, 2, 0}},
};

Shape with_channels(const Shape& s, std::int64_t channels) { return {s[0], s[1], s[2], channels}; }

TEST(OpGradient, Conv) {
  for (const WindowCase& c : kWindows) {
    SCOPED_TRACE(c.name);
    constexpr std::int64_t kOut = 5;
    const Shape ys = with_channels(c.y, kOut);
    const Shape ws{kOut, c.window.kernel_h, c.window.kernel_w, c.x[3]}, bs{kOut};
    Values x = random_values(c.x.count(), 1), w = random_values(ws.count(), 2);
    Values bias = random_values(bs.count(), 3);
    const Values r = random_values(ys.count(), 4);
    const auto f = [&] {
      Values y = zeros(ys);
      conv(c.window, {x, c.x}, {w, ws}, {bias, bs}, {y, ys});
      return weighted_sum(r, y);
    };
    Values dw = zeros(ws), dbias = zeros(bs), dx = zeros(c.x);
    conv_backward_weights(c.window, {x, c.x}, {r, ys}, {dw, ws}, {dbias, bs});
    conv_backward_data(c.window, {w, ws}, {r, ys}, {dx, c.x});
    const double chain = static_cast<double>(ws.count()) / kOut;
    expect_gradient("x", x, dx, f, chain);
    expect_gradient("w", w, dw, f, chain);
    expect_gradient("bias", bias, dbias, f, chain);
    Values dw_alone = zeros(ws);
    conv_backward_weights(c.window, {x, c.x}, {r, ys}, {dw_alone, ws}, {});
    EXPECT_EQ(dw_alone, dw);
  }
}

TEST(OpGradient, FullyConnected) {
  const Shape ys{3, 4}, bs{4};
  for (const auto& [xs, ws] :
       {std::pair{Shape{3, 40}, Shape{4, 40}}, std::pair{Shape{3, 2, 2, 5}, Shape{4, 2, 2, 5}}}) {
    Values x = random_values(xs.count(), 1), w = random_values(ws.count(), 2);
    Values bias = random_values(bs.count(), 3);
    const Values r = random_values(ys.count(), 4);
    const auto f = [&, &x_shape = xs, &w_shape = ws] {
      Values y = zeros(ys);
      fully_connected({x, x_shape}, {w, w_shape}, {bias, bs}, {y, ys});
      return weighted_sum(r, y);
    };
    Values dx = zeros(xs), dw = zeros(ws), dbias = zeros(bs);
    fully_connected_backward_weights({x, xs}, {r, ys}, {dw, ws}, {dbias, bs});
    fully_connected_backward_data({w, ws}, {r, ys}, {dx, xs});
    expect_gradient("x", x, dx, f, 40);
    expect_gradient("w", w, dw, f, 40);
    expect_gradient("bias", bias, dbias, f, 40);
  }
}

TEST(OpGradient, BatchNorm) {
  const Shape xs{2, 3, 2, 3}, cs{3};
  const BatchNormAttr attr{.epsilon = 1e-3, .momentum = 0.1};
  Values x = random_values(xs.count(), 1), gamma = random_values(3, 2), beta = random_values(3, 3);
  const Values r = random_values(xs.count(), 4);
  Values mean = zeros(cs), inv_std = zeros(cs), running_mean = zeros(cs), running_var = zeros(cs);
  const auto f = [&] {
    Values y = zeros(xs);
    batch_norm(attr, {x, xs}, {gamma, cs}, {beta, cs},
               {{y, xs}, {mean, cs}, {inv_std, cs}, {running_mean, cs}, {running_var, cs}});
    return weighted_sum(r, y);
  };
  f();
  Values dx = zeros(xs), dgamma = zeros(cs), dbeta = zeros(cs);
  batch_norm_backward({{x, xs}, {gamma, cs}, {mean, cs}, {inv_std, cs}, {r, xs}}, {dx, xs}, {dgamma, cs}, {dbeta, cs});
  Values dgamma_alone = zeros(cs);  // the first layer of a graph needs dgamma but no dx
  batch_norm_backward({{x, xs}, {gamma, cs}, {mean, cs}, {inv_std, cs}, {r, xs}}, {}, {dgamma_alone, cs}, {dbeta, cs});
  EXPECT_EQ(dgamma_alone, dgamma);
  expect_gradient("x", x, dx, f, 2 * 12);
  expect_gradient("gamma", gamma, dgamma, f, 2 * 12);
  expect_gradient("beta", beta, dbeta, f, 2 * 12);
}

TEST(OpGradient, Relu) {
  const Shape xs{2, 3, 2, 3};
  Values x = well_separated(xs, 1);
  const Values r = random_values(xs.count(), 2);
  Values y = zeros(xs);
  const auto f = [&] {
    relu({x, xs}, {y, xs});
    return weighted_sum(r, y);
  };
  f();
  Values dx = zeros(xs);
  relu_backward({y, xs}, {r, xs}, {dx, xs});
  expect_gradient("x", x, dx, f, 2);
}

TEST(OpGradient, MaxAndAveragePool) {
  for (const WindowCase& c : kWindows) {
    SCOPED_TRACE(c.name);
    const Shape ys = with_channels(c.y, c.x[3]);
    Values x = well_separated(c.x, 1);
    const Values r = random_values(ys.count(), 2);
    Values y = zeros(ys);
    const auto maximum = [&] {
      max_pool(c.window, {x, c.x}, {y, ys});
      return weighted_sum(r, y);
    };
    maximum();
    Values dx = zeros(c.x);
    max_pool_backward(c.window, {x, c.x}, {y, ys}, {r, ys}, {dx, c.x});
    expect_gradient("max pool", x, dx, maximum, 2);
    const auto average = [&] {
      avg_pool(c.window, {x, c.x}, {y, ys});
      return weighted_sum(r, y);
    };
    avg_pool_backward(c.window, {r, ys}, {dx, c.x});
    expect_gradient("average pool", x, dx, average, 25);
  }
}

TEST(OpGradient, GlobalAveragePool) {
  const Shape xs{2, 3, 4, 3}, ys{2, 3};
  Values x = random_values(xs.count(), 1);
  const Values r = random_values(ys.count(), 2);
  const auto f = [&] {
    Values y = zeros(ys);
    global_avg_pool({x, xs}, {y, ys});
    return weighted_sum(r, y);
  };
  Values dx = zeros(xs);
  global_avg_pool_backward({r, ys}, {dx, xs});
  expect_gradient("x", x, dx, f, 12);
}

TEST(OpGradient, AddConcatAndAccumulate) {
  const Shape as{1, 2, 2, 3}, bs{1, 2, 2, 2}, ys{1, 2, 2, 5};
  Values a = random_values(as.count(), 1), b = random_values(bs.count(), 2);
  const Values r = random_values(ys.count(), 3);
  const auto joined = [&] {
    Values y = zeros(ys);
    concat(std::array<In, 2>{In{a, as}, In{b, bs}}, {y, ys});
    return weighted_sum(r, y);
  };
  Values da = zeros(as), db = zeros(bs);
  concat_backward({r, ys}, std::array<Out, 2>{Out{da, as}, Out{db, bs}});
  expect_gradient("concat, first", a, da, joined, 2);
  expect_gradient("concat, second", b, db, joined, 2);

  // f = sum of r * y with y = a + a. Both inputs of add get the gradient r, and accumulate adds the two.
  const Values ra = random_values(as.count(), 4);
  const auto doubled = [&] {
    Values y = zeros(as);
    add({a, as}, {a, as}, {y, as});
    return weighted_sum(ra, y);
  };
  accumulate(std::array<In, 2>{In{ra, as}, In{ra, as}}, {da, as});
  expect_gradient("add and accumulate", a, da, doubled, 2);
}

TEST(OpGradient, Dropout) {
  const Shape xs{2, 12};
  Values x = random_values(xs.count(), 1);
  const Values r = random_values(xs.count(), 2);
  std::vector<std::uint8_t> keep(x.size());
  for (std::size_t i = 0; i < keep.size(); ++i) keep[i] = i % 3 == 0 ? 0 : 1;
  const auto f = [&] {
    Values y = zeros(xs);
    dropout(keep, 1.25, {x, xs}, {y, xs});
    return weighted_sum(r, y);
  };
  Values dx = zeros(xs);
  dropout(keep, 1.25, {r, xs}, {dx, xs});
  expect_gradient("x", x, dx, f, 2);
}

TEST(OpGradient, SoftmaxCrossEntropyWithItsWeight) {
  const Shape xs{3, 6};
  Values logits = random_values(xs.count(), 1);
  const std::vector<std::int32_t> labels{5, 0, 2};
  Values probabilities = zeros(xs);
  const double weight = 0.4;
  const auto f = [&] {
    const double loss = softmax_cross_entropy({logits, xs}, labels, {probabilities, xs});
    return Scalar{.value = weight * loss, .magnitude = weight * std::max(1.0, loss)};
  };
  f();
  Values dlogits = zeros(xs);
  softmax_cross_entropy_backward(weight, {Values(probabilities), xs}, labels, {dlogits, xs});
  expect_gradient("logits", logits, dlogits, f, 3 * 10);
}

}  // namespace
}  // namespace hvd::models::reference::ops_gradient_test
