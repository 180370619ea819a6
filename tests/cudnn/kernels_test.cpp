// Our kernels against the reference: launches, vector widths, and a batch norm in all its pieces. Built twice: for the
// host (host_memory.cpp), and for a GPU, where it is skipped, with the reason, without one. The arithmetic per element
// is tested in element_test.cpp, the kernels whose threads work together in sums_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/synthetic.h"
#include "tests/cudnn/kernel_memory.h"

namespace hvd::models::cudnn::kernels::kernels_test {
namespace {

// Enough rows for many blocks, with a remainder; channels for wide vectors, and not.
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
    if (shape.count() == shape[3]) continue;  // one element per channel has no variance
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

TEST_P(KernelTest, PoolsBothWays) {
  const Window window{3, 3, 2, 2, 1, 1, 1, 1};
  for (const std::int64_t channels : {std::int64_t{64}, std::int64_t{6}}) {
    Tensor x(GetParam(), {3, 31, 29, channels}, 1), y(GetParam(), {3, 16, 15, channels});
    Tensor dy(GetParam(), y.shape, 2), dx(GetParam(), x.shape);
    const Memory where(y.values.size());
    max_pool(window, x.image(), y.image(), where.as<std::uint8_t>(), nullptr);
    reference::max_pool(window, x.in(), y.out());
    y.expect_near("max pool", 0);
    max_pool_backward(window, where.as<std::uint8_t>(), dy.image(), dx.image(), {}, {}, nullptr);
    reference::max_pool_backward(window, x.in(), y.in(), dy.in(), dx.out());
    dx.expect_near("max pool backward", 9);
    avg_pool(window, x.image(), y.image(), nullptr);
    reference::avg_pool(window, x.in(), y.out());
    y.expect_near("average pool", 9);
    avg_pool_backward(window, dy.image(), dx.image(), {}, nullptr);
    reference::avg_pool_backward(window, dy.in(), dx.out());
    dx.expect_near("average pool backward", 9);
    Tensor mean(GetParam(), {3, channels});
    global_avg_pool(x.image(), mean.matrix(), nullptr);
    reference::global_avg_pool(x.in(), mean.out());
    mean.expect_near("global average", 31 * 29);
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
  EXPECT_EQ(back.read(), copied.read());  // widening is exact
}

TEST_P(KernelTest, SyntheticBatchesAreThoseOfAllBackends) {
  constexpr std::int64_t kElements = 7 * 5 * 3, kSamples = 33;
  const std::uint64_t first = 12345;
  std::vector<float> images(kElements * kSamples);
  std::vector<std::int32_t> labels(kSamples);
  models::synthetic_batch({.seed = 9, .image_elements = kElements, .classes = 1000}, first, images, labels);
  Tensor got(GetParam(), {kSamples, kElements});
  const Memory device_first(std::vector<std::uint64_t>{first}), device_labels(kSamples * sizeof(std::int32_t));
  synthetic_batch({9, kElements, 1000, kSamples, device_first.as<std::uint64_t>()}, got.memory.as<void>(), GetParam(),
                  device_labels.as<std::int32_t>(), nullptr);
  EXPECT_EQ(device_labels.read<std::int32_t>(), labels);
  got.values.assign(images.begin(), images.end());
  got.expect_near("images", 16);  // logarithm and cosine are each off by some units in the last place
}

TEST_P(KernelTest, MatricesAreCopiedGapsAndAll) {
  for (const std::int64_t channels : {3, 64, 2048}) {
    const Tensor from(GetParam(), {37, channels}, 1, Gap{8}), to(GetParam(), {37, channels}, Gap{16});
    copy(from.matrix(), to.matrix(), nullptr);
    EXPECT_EQ(to.read(), from.values);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KernelTest, every_type(), type_name);

}  // namespace
}  // namespace hvd::models::cudnn::kernels::kernels_test
