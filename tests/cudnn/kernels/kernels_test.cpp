// Compares our kernels with the reference: launches, vector widths, and all kernels of a batch norm. The test is built
// for the host (host_memory.cpp) and for a GPU (cuda_memory.cpp). Without a GPU the test for a GPU is skipped with the
// reason. sums_test.cpp and softmax_test.cpp test the kernels whose threads work together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "models/random.h"
#include "tests/cudnn/kernels/kernel_memory.h"
#include "tests/cudnn/kernels/pooled_shape.h"
#include "tests/cudnn/kernels/random_norm.h"

namespace hvd::models::cudnn::kernels::kernels_test {
namespace {

// Some shapes have enough rows for many blocks and a remainder, others have few rows. Some numbers of channels allow
// wide vectors, others do not.
const std::vector<Shape> kShapes{{3, 31, 29, 64}, {2, 5, 7, 2048}, {2, 9, 9, 6}, {1, 1, 1, 8}};

void expect_vector(const char* what, const Memory& got, const std::vector<double>& expected, double terms) {
  const std::vector<float> values = got.read();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], std::sqrt(terms) * 0x1.0p-22 * (std::sqrt(terms) + std::abs(expected[i])))
        << what << ", channel " << i;
  }
}

TEST_P(KernelTest, BatchNormInPieces) {
  for (const Shape& shape : kShapes) {
    if (shape.count() == shape[3]) continue;  // a single element per channel has no variance
    SCOPED_TRACE(shape.text());
    const auto channels = static_cast<std::size_t>(shape[3]);
    const Shape vector{shape[3]};
    const std::int64_t rows = shape.count() / shape[3];
    Tensor x(GetParam(), shape, 1), y(GetParam(), shape), dy(GetParam(), shape, 2), dx(GetParam(), shape);
    const Tensor gamma(DataType::kF32, vector, 3), beta(DataType::kF32, vector, 4);
    const Memory workspace(row_sums_workspace(x.matrix(), 2)), sum(channels * 4), square_sum(channels * 4),
        mean(channels * 4), inv_std(channels * 4), scale(channels * 4), shift(channels * 4), dgamma(channels * 4),
        dbeta(channels * 4), a(channels * 4), b(channels * 4), c(channels * 4);
    const Memory running_mean(std::vector<float>(channels, 0)), running_var(std::vector<float>(channels, 1));
    statistics(x.matrix(), sum.as(), square_sum.as(), workspace.as<void>(), nullptr);
    norm_finalize(
        {sum.as(), square_sum.as(), gamma.memory.as(), beta.memory.as(), running_mean.as(), running_var.as(), mean.as(),
         inv_std.as(), scale.as<void>(), shift.as<void>(), DataType::kF32, shape[3], rows, 1e-5F, 0.1F},
        nullptr);
    const Norm norm{mean.as(), inv_std.as(), gamma.memory.as(), beta.memory.as()};
    Pointwise apply;
    apply.out = y.matrix();
    apply.input[0] = x.matrix();
    apply.norm[0] = norm;
    pointwise(apply, nullptr);
    std::vector<double> expected_mean(channels), expected_inv_std(channels), mean_state(channels),
        var_state(channels, 1), expected_dgamma(channels), expected_dbeta(channels);
    reference::batch_norm(
        {1e-5, 0.1}, x.in(), gamma.in(), beta.in(),
        {y.out(), {expected_mean, vector}, {expected_inv_std, vector}, {mean_state, vector}, {var_state, vector}});
    const double terms = 16 * static_cast<double>(rows);
    y.expect_near("batch norm", terms);
    expect_vector("running mean", running_mean, mean_state, terms);
    expect_vector("running variance", running_var, var_state, terms);
    const NormBackward work{x.matrix(),       dy.matrix(),    norm,   false,  dgamma.as<void>(),
                            dbeta.as<void>(), DataType::kF32, a.as(), b.as(), c.as()};
    norm_backward_weights(work, workspace.as<void>(), nullptr);
    norm_backward_apply(work, dx.matrix(), nullptr);
    reference::batch_norm_backward({x.in(), gamma.in(), {expected_mean, vector}, {expected_inv_std, vector}, dy.in()},
                                   dx.out(), {expected_dgamma, vector}, {expected_dbeta, vector});
    expect_vector("dgamma", dgamma, expected_dgamma, terms);
    expect_vector("dbeta", dbeta, expected_dbeta, terms);
    dx.expect_near("batch norm backward", terms);
  }
}

/// The epilogue of a pool's backward pass. It first adds earlier diffs and then applies a rectifier's backward.
struct Behind {
  Tensor add, test;
  Behind(DataType type, const Shape& shape) : add(type, shape, 5), test(type, shape, 6) {}
  [[nodiscard]] Epilogue epilogue() const { return {.add = add.matrix(), .test = test.matrix(), .test_norm = {}}; }
  void apply(std::vector<double>& dx) const {
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] = test.values[i] > 0 ? dx[i] + add.values[i] : 0;
  }
};

// The kernel has a body of its own for each of these windows except the last, which uses the body for any window.
const std::vector<Window> kWindows{{3, 3, 2, 2, 1, 1, 1, 1},
                                   {3, 3, 2, 2},
                                   {2, 2, 2, 2},
                                   {3, 3, 1, 1, 1, 1, 1, 1},
                                   {3, 3, 1, 1, 0, 1, 1, 0},
                                   {3, 3, 1, 1, 2, 1, 1, 2},
                                   {3, 2, 1, 3, 2, 0, 1, 0}};

TEST_P(KernelTest, WindowsBecomeRows) {
  for (const Window& window : {Window{7, 7, 2, 2, 3, 3, 3, 3}, Window{3, 3, 1, 1, 1, 1, 1, 1}, Window{3, 3, 2, 2},
                               Window{3, 2, 1, 3, 2, 0, 1, 0}}) {
    // The second shape is so wide that one line needs several blocks. It gets no gaps.
    for (const Shape& images : {Shape{3, 31, 29, 3}, Shape{1, 9, 400, 3}}) {
      const Tensor x(GetParam(), images, 1, Gap{images[0] - 1});
      const Shape y = pooled_shape(x.shape, window);
      const std::int64_t taps = std::int64_t{3} * window.kernel_h * window.kernel_w;
      // The three widths give rows that are written as vectors, rows that are written one element at a time, and rows
      // with more elements than a block has threads.
      for (const std::int64_t width : {(taps + 7) / 8 * 8, (taps + 7) / 8 * 8 + 1, std::int64_t{301}}) {
        Tensor rows(GetParam(), {y[0] * y[1] * y[2], width});
        columns(window, x.image(), {rows.matrix(), y[0], y[1], y[2]}, nullptr);
        for (std::int64_t row = 0; row < rows.shape[0]; ++row) {
          const std::int64_t n = row / (y[1] * y[2]), top = row / y[2] % y[1] * window.stride_h - window.pad_top;
          const std::int64_t left = row % y[2] * window.stride_w - window.pad_left;
          for (std::int64_t tap = 0; tap < width; ++tap) {
            const std::int64_t h = top + tap / 3 / window.kernel_w, w = left + tap / 3 % window.kernel_w;
            const bool there = tap < taps && h >= 0 && w >= 0 && h < images[1] && w < images[2];
            rows.values[static_cast<std::size_t>(row * width + tap)] =
                there ? x.values[static_cast<std::size_t>(((n * images[1] + h) * images[2] + w) * 3 + tap % 3)] : 0;
          }
        }
        rows.expect_near("columns", 0);
      }
    }
  }
}

TEST_P(KernelTest, WindowsAreRefusedThatAreTooLarge) {
  const Tensor x(GetParam(), {1, 40, 40, 3}), rows(GetParam(), {1, 4800});
  models::testing::expect_error(Errc::kInvalidArgument, {"columns", "4800", "4096"}, [&] {
    columns(Window{40, 40, 1, 1}, x.image(), {rows.matrix(), 1, 1, 1}, nullptr);
  });
}

TEST_P(KernelTest, PoolsBothWays) {
  for (const Window& window : kWindows) {
    for (const std::int64_t channels : {std::int64_t{64}, std::int64_t{6}}) {
      const double taps = window.kernel_h * window.kernel_w;
      Tensor x(GetParam(), {3, 31, 29, channels}, 1), y(GetParam(), pooled_shape(x.shape, window));
      Tensor dy(GetParam(), y.shape, 2), dx(GetParam(), x.shape);
      const Behind behind(GetParam(), x.shape);
      const Memory where(y.values.size());
      max_pool(window, x.image(), y.image(), where.as<std::uint8_t>(), nullptr);
      reference::max_pool(window, x.in(), y.out());
      y.expect_near("max pool", 0);
      max_pool_backward(window, where.as<std::uint8_t>(), dy.image(), dx.image(), {}, {}, nullptr);
      reference::max_pool_backward(window, x.in(), y.in(), dy.in(), dx.out());
      dx.expect_near("max pool backward", taps);
      max_pool_backward(window, where.as<std::uint8_t>(), dy.image(), dx.image(), y.matrix(), behind.epilogue(),
                        nullptr);
      std::vector<double> masked(dy.values.size());
      reference::relu_backward(y.in(), dy.in(), {masked, dy.shape});
      reference::max_pool_backward(window, x.in(), y.in(), {masked, dy.shape}, dx.out());
      behind.apply(dx.values);
      dx.expect_near("max pool backward, with what stands around it", taps + 1);
      avg_pool(window, x.image(), y.image(), nullptr);
      reference::avg_pool(window, x.in(), y.out());
      y.expect_near("average pool", taps);
      avg_pool_backward(window, dy.image(), dx.image(), {}, nullptr);
      reference::avg_pool_backward(window, dy.in(), dx.out());
      dx.expect_near("average pool backward", taps);
      avg_pool_backward(window, dy.image(), dx.image(), behind.epilogue(), nullptr);
      behind.apply(dx.values);
      dx.expect_near("average pool backward, with what stands behind it", taps + 1);
    }
  }
}

TEST_P(KernelTest, GlobalAverages) {
  for (const std::int64_t channels : {std::int64_t{64}, std::int64_t{6}}) {
    const Tensor x(GetParam(), {3, 31, 29, channels}, 1);
    Tensor mean(GetParam(), {3, channels}), dx(GetParam(), x.shape);
    global_avg_pool(x.image(), mean.matrix(), nullptr);
    reference::global_avg_pool(x.in(), mean.out());
    mean.expect_near("global average", 31 * 29);
    const Tensor dy(GetParam(), mean.shape, 2);
    global_avg_pool_backward(dy.matrix(), dx.image(), {}, nullptr);
    reference::global_avg_pool_backward(dy.in(), dx.out());
    dx.expect_near("global average backward", 1);
  }
}

TEST_P(KernelTest, SumsOfBatchNorms) {
  for (const std::int64_t channels : {std::int64_t{72}, std::int64_t{6}}) {
    const Shape shape{333, channels};
    const Tensor first(GetParam(), shape, 1, Gap{8}), second(GetParam(), shape, 2), test(GetParam(), shape, 3);
    const RandomNorm norm(channels, 10), other(channels, 20);
    const auto c = static_cast<std::size_t>(channels);
    // Each bit of `choice` switches one option on: a second input, a batch norm for each input, a rectifier, a mask
    // from `test`.
    for (int choice = 0; choice < 32; ++choice) {
      const bool two = (choice & 1) != 0, relu = (choice & 8) != 0, tested = (choice & 16) != 0;
      const bool norms[2] = {(choice & 2) != 0, two && (choice & 4) != 0};
      Tensor out(GetParam(), shape, Gap{16});
      Pointwise work;
      work.out = out.matrix();
      work.inputs = two ? 2 : 1;
      work.input[0] = first.matrix();
      work.input[1] = second.matrix();
      if (norms[0]) work.norm[0] = norm.norm();
      if (norms[1]) work.norm[1] = other.norm();
      work.relu = relu;
      if (tested) work.test = test.matrix();
      pointwise(work, nullptr);
      for (std::size_t i = 0; i < out.values.size(); ++i) {
        double value = norms[0] ? norm.apply(first.values[i], i % c) : first.values[i];
        if (two) value += norms[1] ? other.apply(second.values[i], i % c) : second.values[i];
        if (relu) value = std::max(value, 0.0);
        out.values[i] = tested && !(test.values[i] > 0) ? 0 : value;
      }
      SCOPED_TRACE(choice);
      out.expect_near("sum", 4096);  // the tolerance is large because values of some tens may cancel
    }
  }
}

TEST_P(KernelTest, SumsWithABiasAndAMaskByABatchNorm) {
  for (const std::int64_t channels : {std::int64_t{72}, std::int64_t{6}}) {
    const Shape shape{37, channels};
    const Tensor first(GetParam(), shape, 1, Gap{8}), second(GetParam(), shape, 2), bias(GetParam(), {channels}, 3);
    const Tensor test(GetParam(), shape, 4);
    const RandomNorm norm(channels, 10), tested(channels, 20);
    Tensor out(GetParam(), shape, Gap{16});
    pointwise({.out = out.matrix(),
               .inputs = 2,
               .input = {first.matrix(), second.matrix()},
               .norm = {norm.norm()},
               .bias = bias.memory.as<void>(),
               .relu = true,
               .test = test.matrix(),
               .test_norm = tested.norm()},
              nullptr);
    const std::vector<double> got = out.read();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t c = i % static_cast<std::size_t>(channels);
      const double at = tested.apply(test.values[i], c);
      const double sum = norm.apply(first.values[i], c) + second.values[i] + bias.values[c];
      out.values[i] = at > 0 ? std::max(sum, 0.0) : 0;
      if (std::abs(at) < 1e-5) out.values[i] = got[i];  // rounding may change the sign near zero
    }
    SCOPED_TRACE(channels);
    out.expect_near("sum", 4096);  // the tolerance is large because values of some tens may cancel
  }
}

TEST_P(KernelTest, DropoutDrawsTheMaskOfAllBackends) {
  const DropoutAttr attr{.rate = 0.3, .stream = 3};
  const DropoutPoint point{.seed = 11, .step = 7, .first_sample = 5, .features = 60};
  const Memory counters(std::vector<std::uint64_t>{point.step, point.first_sample});
  for (const Shape& shape : {Shape{4, 60}, Shape{4, 2, 3, 10}}) {
    const Tensor x(GetParam(), shape, 1);
    Tensor y(GetParam(), shape);
    pointwise({.out = y.matrix(),
               .input = {x.matrix()},
               .dropout = {.used = true,
                           .rate = attr.rate,
                           .seed = point.seed,
                           .stream = attr.stream,
                           .rows_per_sample = y.rows() / shape[0],
                           .step = counters.as<std::uint64_t>(),
                           .first_sample = counters.as<std::uint64_t>() + 1}},
              nullptr);
    std::vector<std::uint8_t> keep(y.values.size());
    dropout_mask(attr, point, keep);
    reference::dropout(keep, dropout_scale(attr), x.in(), y.out());
    y.expect_near("dropout", 1);
  }
}

TEST_P(KernelTest, UpdateCopiesAndFiniteCheck) {
  const Shape shape{64 * 1001};
  Tensor w(DataType::kF32, shape, 1), m(DataType::kF32, shape, 2), copied(GetParam(), shape);
  const Tensor g(GetParam(), shape, 3);
  std::vector<std::uint8_t> decays(1001);
  for (std::size_t i = 0; i < decays.size(); ++i) decays[i] = i % 3 == 0 ? 1 : 0;
  const Memory device_decays(decays), loss_scale(std::vector<LossScale>{{8}});
  const Memory scalars(std::vector<StepScalars>{{0.1F, 0.9F, 0.01F, 4.0F}});
  find_overflow(g.memory.as<void>(), GetParam(), shape.count(), loss_scale.as<LossScale>(), nullptr);
  Sgd work{w.memory.as(),
           m.memory.as(),
           g.memory.as<void>(),
           GetParam(),
           copied.memory.as<void>(),
           GetParam(),
           device_decays.as<std::uint8_t>(),
           shape.count(),
           scalars.as<StepScalars>(),
           loss_scale.as<LossScale>()};
  sgd(work, nullptr);
  for (std::size_t i = 0; i < w.values.size(); ++i) {
    m.values[i] = 0.9 * m.values[i] + 0.5 * g.values[i] + (decays[i / 64] != 0 ? 0.01 : 0.0) * w.values[i];
    w.values[i] -= 0.1 * m.values[i];
    copied.values[i] = w.values[i];
  }
  w.expect_near("weights", 8);
  m.expect_near("momentum", 8);
  copied.expect_near("copy of the weights", 8);
  Tensor back(DataType::kF32, shape);
  const std::vector<Copy> copies{{copied.memory.as<void>(), back.memory.as<void>(), GetParam(), DataType::kF32, 1000},
                                 {copied.memory.as<std::byte>() + 1000 * size_of(GetParam()), back.memory.as() + 1000,
                                  GetParam(), DataType::kF32, shape.count() - 1000}};
  copy(copies, nullptr);
  EXPECT_EQ(back.read(), copied.read());  // conversion to fp32 is exact
}

TEST_P(KernelTest, AGradientThatIsNotFiniteStopsTheUpdate) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Shape shape{64};
  const Tensor weights(DataType::kF32, shape, 1), momentum(DataType::kF32, shape, 2), copied(GetParam(), shape, 3);
  const Memory decays(std::vector<std::uint8_t>{1}), scalars(std::vector<StepScalars>{{0.1F, 0.9F, 0.01F, 4.0F}});
  std::vector<double> values(64, 65504);  // the largest finite number of fp16
  const Tensor good(GetParam(), shape, values);
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    values[43] = bad;
    const Tensor gradients(GetParam(), shape, values);
    const Memory scale(std::vector<LossScale>{{8}});
    const auto overflow = [&](const Tensor& checked) {
      find_overflow(checked.memory.as<void>(), GetParam(), 64, scale.as<LossScale>(), nullptr);
      return scale.read<LossScale>()[0].overflow;
    };
    EXPECT_EQ(overflow(good), 0);
    EXPECT_EQ(overflow(gradients), 1);
    sgd({weights.memory.as(), momentum.memory.as(), gradients.memory.as<void>(), GetParam(), copied.memory.as<void>(),
         GetParam(), decays.as<std::uint8_t>(), 64, scalars.as<StepScalars>(), scale.as<LossScale>()},
        nullptr);
    for (const Tensor* tensor : {&weights, &momentum, &copied}) EXPECT_EQ(tensor->read(), tensor->values) << bad;
  }
}

/// Runs once, because the kernel has no element type.
class LossScaleTest : public KernelTest {};

TEST_P(LossScaleTest, HalvesAfterAnOverflowAndGrowsAfterGoodSteps) {
  const Memory memory(std::vector<LossScale>{{.scale = 4, .overflow = 1, .good_steps = 1}});
  const auto expect = [&](float scale, int good, int skipped) {
    adjust_loss_scale(memory.as<LossScale>(), 2, nullptr);
    const LossScale now = memory.read<LossScale>()[0];
    EXPECT_EQ(now.scale, scale);
    EXPECT_EQ(now.good_steps, good);
    EXPECT_EQ(now.skipped, skipped);
    EXPECT_EQ(now.overflow, 0);
  };
  const auto set = [&](const LossScale& to) { to_device(memory.as<void>(), &to, sizeof to); };
  expect(2, 0, 1);
  expect(2, 1, 1);
  expect(4, 0, 1);
  set({.scale = 1, .overflow = 1, .skipped = 2});
  expect(1, 0, 3);  // the scale stays at 1, because an overflow without scaling has another cause
  set({.scale = 0x1p24F, .skipped = 3});
  expect(0x1p24F, 1, 3);
  expect(0x1p24F, 0, 3);
}

TEST_P(KernelTest, SyntheticBatchesAreThoseOfAllBackends) {
  constexpr std::int64_t kElements = 7 * 5 * 3, kSamples = 33;  // odd, so that samples begin inside a block of Philox
  for (const std::uint64_t first : {0, 1, 12345}) {
    std::vector<float> images(kElements * kSamples);
    std::vector<std::int32_t> labels(kSamples);
    models::synthetic_batch({.seed = 9, .image_elements = kElements, .classes = 1000}, first, images, labels);
    Tensor flat(GetParam(), {kSamples, kElements}), padded(GetParam(), {kElements / 3 * kSamples, 3}, Gap{5});
    const Memory device_first(std::vector<std::uint64_t>{first}), device_labels(kSamples * sizeof(std::int32_t));
    for (Tensor* got : {&flat, &padded}) {
      synthetic_batch({9, kElements, 1000, kSamples, device_first.as<std::uint64_t>()}, got->matrix(),
                      device_labels.as<std::int32_t>(), nullptr);
      EXPECT_EQ(device_labels.read<std::int32_t>(), labels);
      got->values.assign(images.begin(), images.end());
      got->expect_near("images", 16);  // logarithm and cosine are each off by a few units in the last place
    }
  }
}

TEST_P(KernelTest, MatricesAreCopiedGapsAndAll) {
  for (const std::int64_t channels : {3, 64, 2048}) {
    const Tensor from(GetParam(), {37, channels}, 1, Gap{8}), to(GetParam(), {37, channels}, Gap{16});
    copy(from.matrix(), to.matrix(), nullptr);
    EXPECT_EQ(to.read(), from.values);
  }
}

TEST_P(KernelTest, MatricesAreCopiedToAnotherTypeGapsAndAll) {
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kBF16}) {
    const Tensor from(GetParam(), {9001, 3}, 1, Gap{0});
    Tensor to(type, {9001, 3}, Gap{5}), back(DataType::kF32, {9001, 3});
    copy(from.matrix(), to.matrix(), nullptr);
    to.values = from.values;
    to.expect_near("copy", 1);
    copy(to.matrix(), back.matrix(), nullptr);
    EXPECT_EQ(back.read(), to.read());  // conversion to fp32 is exact
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KernelTest, every_type(), type_name);
INSTANTIATE_TEST_SUITE_P(OneType, LossScaleTest, ::testing::Values(DataType::kF32), type_name);

}  // namespace
}  // namespace hvd::models::cudnn::kernels::kernels_test
