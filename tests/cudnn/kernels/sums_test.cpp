// Compares sums over rows (norm.cu) with results in double. The threads of the kernels work together. Built for the
// host and for a GPU, like kernels_test.cpp. The bounds are in fp32_bounds.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/cudnn/kernels/fp32_bounds.h"
#include "tests/cudnn/kernels/random_norm.h"

namespace hvd::models::cudnn::kernels::sums_test {
namespace {

struct Case {
  std::int64_t rows, channels, gap;
};
// The cases have one row, few rows, or many rows with a remainder in every block. Some have wide vectors, some have
// gaps.
const std::vector<Case> kCases{{1, 3, 0},   {1, 2048, 0},  {7, 64, 8},   {31, 3, 5},   {257, 64, 0},
                               {33, 64, 1}, {97, 2048, 8}, {1000, 3, 0}, {1000, 12, 4}};

std::string text(const Case& test_case) {
  return std::to_string(test_case.rows) + " rows of " + std::to_string(test_case.channels) + " and " +
         std::to_string(test_case.gap);
}

/// For each channel, the sum of the elements and the sum of their squares, in double.
struct ChannelSums {
  std::vector<Sum> sums, squares;
  explicit ChannelSums(const Tensor& x)
      : sums(static_cast<std::size_t>(x.channels())), squares(static_cast<std::size_t>(x.channels())) {
    for (std::size_t i = 0; i < x.values.size(); ++i) {
      sums[i % sums.size()].add(x.values[i]);
      squares[i % sums.size()].add(x.values[i] * x.values[i]);
    }
  }
};

void expect_sums(const char* what, const std::vector<double>& got, const std::vector<Sum>& of_channel, DataType made) {
  std::vector<double> expected, bounds;
  for (const Sum& sum : of_channel) {
    expected.push_back(sum.value);
    bounds.push_back(sum.bound(2) + stored(made, sum.value));
  }
  expect_within(got, expected, bounds, what);
}

void expect_statistics(const Tensor& x, const ChannelSums& expected) {
  const auto bytes = static_cast<std::size_t>(x.channels()) * sizeof(float);
  const Memory workspace(row_sums_workspace(x.matrix(), 2)), sum(bytes), square_sum(bytes);
  statistics(x.matrix(), sum.as(), square_sum.as(), workspace.as<void>(), nullptr);
  expect_sums("sum of channel", doubles(sum), expected.sums, DataType::kF32);
  expect_sums("sum of squares of channel", doubles(square_sum), expected.squares, DataType::kF32);
  const std::vector<float> first = sum.read();
  statistics(x.matrix(), sum.as(), square_sum.as(), workspace.as<void>(), nullptr);
  EXPECT_EQ(sum.read(), first);  // a repeated launch must give the same bits
}

class SumsTest : public KernelTest {};

TEST_P(SumsTest, StatisticsAndBiasGradients) {
  for (const Case& test_case : kCases) {
    SCOPED_TRACE(text(test_case));
    const Tensor x(GetParam(), {test_case.rows, test_case.channels}, 1, Gap{test_case.gap});
    const ChannelSums expected(x);
    expect_statistics(x, expected);
    for (const DataType made : {DataType::kF32, DataType::kF16, DataType::kBF16}) {
      const Memory workspace(row_sums_workspace(x.matrix(), 1));
      const Tensor bias(made, {test_case.channels});
      bias_gradient(x.matrix(), bias.memory.as<void>(), made, workspace.as<void>(), nullptr);
      expect_sums("bias gradient of channel", bias.read(), expected.sums, made);
    }
  }
}

constexpr float kNormEpsilon = 1e-5F, kMomentum = 0.1F;

/// The inputs and outputs of the kernel that finalises a batch norm, except the sums.
struct Finalised {
  Tensor gamma, beta, running_mean, running_var, mean, inv_std, scale, shift;

  Finalised(DataType type, const Shape& vector, const std::vector<double>& running)
      : gamma(DataType::kF32, vector, 1),
        beta(DataType::kF32, vector, 2),
        running_mean(DataType::kF32, vector, 4),
        running_var(DataType::kF32, vector, running),
        mean(DataType::kF32, vector),
        inv_std(DataType::kF32, vector),
        scale(type, vector),
        shift(type, vector) {}
  /// Returns the kernel's arguments. The pointers to the sums are not set.
  [[nodiscard]] NormFinalize work(DataType type, std::int64_t count) const {
    return {.gamma = gamma.memory.as(),
            .beta = beta.memory.as(),
            .running_mean = running_mean.memory.as(),
            .running_var = running_var.memory.as(),
            .mean = mean.memory.as(),
            .inv_std = inv_std.memory.as(),
            .scale = scale.memory.as<void>(),
            .shift = shift.memory.as<void>(),
            .type = type,
            .channels = mean.shape[0],
            .count = count,
            .epsilon = kNormEpsilon,
            .momentum = kMomentum};
  }
};

TEST_P(SumsTest, StatisticsAreFinalisedInTheSameLaunch) {
  for (const Case& test_case : kCases) {
    SCOPED_TRACE(text(test_case));
    const Tensor x(GetParam(), {test_case.rows, test_case.channels}, 1, Gap{test_case.gap});
    const Shape vector{test_case.channels};
    const Memory workspace(row_sums_workspace(x.matrix(), 2));
    const auto finalised = [&](bool at_once) {
      const Finalised norm(GetParam(), vector, models::testing::random_values(test_case.channels, 5));
      const Tensor sum(DataType::kF32, vector), square_sum(DataType::kF32, vector);
      NormFinalize work = norm.work(GetParam(), test_case.rows);
      if (at_once) {
        norm_statistics(x.matrix(), work, workspace.as<void>(), nullptr);
      } else {
        statistics(x.matrix(), sum.memory.as(), square_sum.memory.as(), workspace.as<void>(), nullptr);
        work.sum = sum.memory.as();
        work.square_sum = square_sum.memory.as();
        norm_finalize(work, nullptr);
      }
      std::vector<std::vector<double>> made;
      for (const Tensor* vector_tensor :
           {&norm.mean, &norm.inv_std, &norm.scale, &norm.shift, &norm.running_mean, &norm.running_var}) {
        made.push_back(vector_tensor->read());
      }
      return made;
    };
    // The bits may differ, because the compiler may fuse different multiplications and additions in the two kernels.
    // The variance is a difference of two numbers and magnifies these roundings.
    const auto at_once = finalised(true), in_turn = finalised(false);
    std::vector<std::vector<double>> bounds(in_turn.size());
    for (std::size_t c = 0; c < in_turn[0].size(); ++c) {
      const double mean_of = in_turn[0][c], inv_std_of = in_turn[1][c], scale_of = in_turn[2][c];
      const double variance = 4 * 0x1p-24 * (mean_of * mean_of + 1 / (inv_std_of * inv_std_of));
      const double relative = 0.5 * inv_std_of * inv_std_of * variance + 4 * 0x1p-24;  // relative error of inv_std
      const double scale_bound = std::abs(scale_of) * relative;
      bounds[0].push_back(std::abs(mean_of) * 0x1p-22);
      bounds[1].push_back(inv_std_of * relative);
      bounds[2].push_back(scale_bound + stored(GetParam(), scale_of));
      bounds[3].push_back(std::abs(mean_of) * scale_bound + 0x1p-20 + stored(GetParam(), in_turn[3][c]));
      bounds[4].push_back(0x1p-20);
      bounds[5].push_back(2 * variance + 0x1p-20);
    }
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      SCOPED_TRACE("vector " + std::to_string(i));
      expect_within(at_once[i], in_turn[i], bounds[i], "channel");
    }
  }
}

TEST_P(SumsTest, BatchNormsAreFinalised) {
  for (const std::int64_t channels : {3, 64, 2048}) {
    for (const std::int64_t count : {1, 2, 12544, 802816}) {
      SCOPED_TRACE(std::to_string(channels) + " channels of " + std::to_string(count));
      const auto n = static_cast<double>(count);
      const Shape vector{channels};
      std::vector<double> drawn = models::testing::random_values(channels, 3);
      std::vector<double> sums(drawn.size()), square_sums(drawn.size());
      for (std::size_t c = 0; c < drawn.size(); ++c) {
        const double mean = 4 * drawn[c];
        // The variance of three successive channels is positive, zero and negative. Rounded sums may give a negative
        // variance.
        const double variance = c % 3 == 0 ? 0.25 + drawn[c] * drawn[c] : c % 3 == 1 ? 0 : -1e-3 * mean * mean;
        sums[c] = n * mean;
        square_sums[c] = n * (mean * mean + (count > 1 ? variance : 0));
      }
      const Tensor sum(DataType::kF32, vector, sums), square_sum(DataType::kF32, vector, square_sums);
      const Finalised norm(GetParam(), vector, square_sum.values);
      const std::vector<double> mean_before = norm.running_mean.read(), var_before = norm.running_var.read();
      NormFinalize work = norm.work(GetParam(), count);
      work.sum = sum.memory.as();
      work.square_sum = square_sum.memory.as();
      norm_finalize(work, nullptr);
      const std::vector<double> means = norm.mean.read(), inverses = norm.inv_std.read(), scales = norm.scale.read(),
                                shifts = norm.shift.read(), mean_after = norm.running_mean.read(),
                                var_after = norm.running_var.read();
      for (std::size_t c = 0; c < drawn.size(); ++c) {
        SCOPED_TRACE(c);
        const double m = sum.values[c] / n;
        ASSERT_NEAR(means[c], m, kEpsilon * std::abs(m));
        // The variance is the difference of two numbers, each of which is off by two roundings. `size` is the sum of
        // the two.
        const double size = square_sum.values[c] / n + m * m;
        const double variance = square_sum.values[c] / n - m * m;
        const double off = 2 * kEpsilon * size;
        const auto inverse = [&](double v) {
          return 1 / std::sqrt(std::max(v, 0.0) + static_cast<double>(kNormEpsilon));
        };
        ASSERT_GE(inverses[c], inverse(variance + off) * (1 - 2 * kEpsilon));
        ASSERT_LE(inverses[c], inverse(variance - off) * (1 + 2 * kEpsilon));
        const double scaled = norm.gamma.values[c] * inverses[c];
        ASSERT_NEAR(scales[c], scaled, kEpsilon * std::abs(scaled) + stored(GetParam(), scaled));
        const double shifted = norm.beta.values[c] - means[c] * scaled;
        ASSERT_NEAR(
            shifts[c], shifted,
            2 * kEpsilon * (std::abs(norm.beta.values[c]) + std::abs(means[c] * scaled)) + stored(GetParam(), shifted));
        const double momentum = static_cast<double>(kMomentum);
        ASSERT_NEAR(mean_after[c], mean_before[c] + momentum * (m - mean_before[c]),
                    2 * kEpsilon * (std::abs(m) + std::abs(mean_before[c])));
        const double unbiased = std::max(variance, 0.0) * (count > 1 ? n / (n - 1) : 1);
        ASSERT_NEAR(var_after[c], var_before[c] + momentum * (unbiased - var_before[c]),
                    2 * off + 2 * kEpsilon * (unbiased + std::abs(var_before[c])));
      }
    }
  }
}

/// The results of a batch norm's backward pass in double, with the error bounds of fp32.
struct ExpectedBackward {
  std::vector<Sum> dbeta, dgamma;
  std::vector<double> passing;  ///< [element]: dy if the rectifier's input is positive, else 0
  std::vector<bool> undecided;  ///< [element]: true if the input is so near zero that rounding decides its sign
};

ExpectedBackward expected_backward(const Tensor& x, const Tensor& dy, const RandomNorm& norm, bool rectified) {
  const auto channels = static_cast<std::size_t>(x.channels());
  ExpectedBackward expected{std::vector<Sum>(channels), std::vector<Sum>(channels), dy.values,
                            std::vector<bool>(dy.values.size())};
  for (std::size_t i = 0; i < dy.values.size(); ++i) {
    const std::size_t c = i % channels;
    const double normed = (x.values[i] - norm.mean.values[c]) * norm.inv_std.values[c];
    const double product = normed * norm.gamma.values[c], at = product + norm.beta.values[c];
    expected.undecided[i] =
        rectified && std::abs(at) <= 2 * kEpsilon * (std::abs(product) + std::abs(norm.beta.values[c]));
    if (rectified && !(at > 0)) expected.passing[i] = 0;
    expected.dbeta[c].add(expected.passing[i]);
    expected.dgamma[c].add(expected.passing[i] * normed);
    if (!expected.undecided[i]) continue;
    expected.dbeta[c].undecided += std::abs(dy.values[i]);
    expected.dgamma[c].undecided += std::abs(dy.values[i] * normed);
  }
  return expected;
}

TEST_P(SumsTest, BatchNormsBackward) {
  for (const Case& test_case : kCases) {
    const Shape shape{test_case.rows, test_case.channels}, vector{test_case.channels};
    const Tensor x(GetParam(), shape, 1, Gap{test_case.gap}), dy(GetParam(), shape, 2, Gap{test_case.gap});
    const RandomNorm norm(test_case.channels, 3);
    const auto n = static_cast<double>(test_case.rows);
    for (const bool rectified : {false, true}) {
      const ExpectedBackward expected = expected_backward(x, dy, norm, rectified);
      for (const DataType made : {DataType::kF32, GetParam()}) {
        SCOPED_TRACE(text(test_case) + (rectified ? ", rectified, " : ", ") + std::string(hvd::name(made)));
        const Memory workspace(row_sums_workspace(x.matrix(), 2));
        const Tensor dgamma(made, vector), dbeta(made, vector), a(DataType::kF32, vector), b(DataType::kF32, vector),
            c(DataType::kF32, vector), dx(GetParam(), shape, Gap{test_case.gap});
        const NormBackward work{.x = x.matrix(),
                                .dy = dy.matrix(),
                                .norm = norm.norm(),
                                .rectified = rectified,
                                .dgamma = dgamma.memory.as<void>(),
                                .dbeta = dbeta.memory.as<void>(),
                                .gradient_type = made,
                                .a = a.memory.as(),
                                .b = b.memory.as(),
                                .c = c.memory.as()};
        norm_backward_weights(work, workspace.as<void>(), nullptr);
        const std::vector<double> got_gamma = dgamma.read(), got_beta = dbeta.read(), got_a = a.read(),
                                  got_b = b.read(), got_c = c.read();
        for (std::size_t k = 0; k < got_a.size(); ++k) {
          SCOPED_TRACE(k);
          const Sum &for_gamma = expected.dgamma[k], &for_beta = expected.dbeta[k];
          ASSERT_NEAR(got_gamma[k], for_gamma.value, for_gamma.bound(4) + stored(made, for_gamma.value));
          ASSERT_NEAR(got_beta[k], for_beta.value, for_beta.bound() + stored(made, for_beta.value));
          const double inv_std = norm.inv_std.values[k], mean = norm.mean.values[k],
                       scale = norm.gamma.values[k] * inv_std;
          const double per_gamma = -scale * inv_std / n, slope = per_gamma * for_gamma.value;
          const double level = scale * for_beta.value / n;
          ASSERT_NEAR(got_a[k], scale, kEpsilon * std::abs(scale));
          const double slope_off = std::abs(per_gamma) * for_gamma.bound(4) + 3 * kEpsilon * std::abs(slope);
          ASSERT_NEAR(got_b[k], slope, slope_off);
          ASSERT_NEAR(got_c[k], -slope * mean - level,
                      slope_off * std::abs(mean) + std::abs(scale) / n * for_beta.bound() +
                          3 * kEpsilon * (std::abs(slope * mean) + std::abs(level)));
        }
        norm_backward_apply(work, dx.matrix(), nullptr);
        const std::vector<double> got = dx.read();
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::size_t k = i % got_a.size();
          const double first = got_a[k] * expected.passing[i], second = got_b[k] * x.values[i];
          const double right = first + second + got_c[k];
          const double either = expected.undecided[i] ? std::abs(got_a[k] * dy.values[i]) : 0;
          ASSERT_NEAR(got[i], right,
                      2 * kEpsilon * (std::abs(first) + std::abs(second) + std::abs(got_c[k])) +
                          stored(GetParam(), right) + either)
              << "dx " << i;
        }
      }
    }
  }
}

/// Runs with one element type only, because the test takes seconds on the host.
class LongSumsTest : public KernelTest {};

TEST_P(LongSumsTest, MoreRowsThanAllBlocksHoldAtFirst) {
  const Tensor x(GetParam(), {20600, 51}, 1);  // in the first round 396 blocks sum 20 rows each: 7920 rows
  expect_statistics(x, ChannelSums(x));
}

INSTANTIATE_TEST_SUITE_P(Types, SumsTest, every_type(), type_name);
INSTANTIATE_TEST_SUITE_P(OneType, LongSumsTest, ::testing::Values(DataType::kBF16), type_name);

}  // namespace
}  // namespace hvd::models::cudnn::kernels::sums_test
