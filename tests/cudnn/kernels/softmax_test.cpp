// Compares the softmax cross-entropy (loss.cu) with results in double. The threads of its kernel work together. Built
// for the host and for a GPU, like kernels_test.cpp. The bounds are in fp32_bounds.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cudnn/kernels/fp32_bounds.h"

namespace hvd::models::cudnn::kernels::softmax_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The losses and probabilities of a batch in double, and the error bounds of the same results in fp32.
struct ExpectedLoss {
  std::vector<double> rows, row_bounds, probabilities, bounds;
};

ExpectedLoss expected_loss(const Tensor& logits, const std::vector<std::int32_t>& labels) {
  ExpectedLoss expected;
  const auto classes = static_cast<std::size_t>(logits.channels());
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const double* const x = &logits.values[row * classes];
    const double largest = *std::max_element(x, x + classes);
    double sum = 0, distance = 0;  // the relative error of exp() grows with largest - x, whose mean is distance / sum
    for (std::size_t c = 0; c < classes; ++c) {
      const double e = std::exp(x[c] - largest);
      sum += e;
      if (e > 0) distance += e * (largest - x[c]);
    }
    // exp() is off by 2 units in the last place (CUDA C++ Programming Guide, table of mathematical functions).
    const double sum_off = kEpsilon * (std::sqrt(static_cast<double>(classes)) + 2 + distance / sum);
    for (std::size_t c = 0; c < classes; ++c) {
      const double p = std::exp(x[c] - largest) / sum;
      expected.probabilities.push_back(p);
      expected.bounds.push_back(p > 0 ? p * (sum_off + kEpsilon * (3 + largest - x[c])) + 0x1.0p-126 : 0x1.0p-126);
    }
    const double below = largest - x[static_cast<std::size_t>(labels[row])];
    expected.rows.push_back(std::log(sum) + below);
    expected.row_bounds.push_back(sum_off + kEpsilon * (std::log(sum) + below));
  }
  return expected;
}

/// Calls softmax_cross_entropy() once and keeps its results.
struct Loss {
  Memory labels, row_losses, loss, probabilities;
  Loss(const Tensor& logits, const std::vector<std::int32_t>& given_labels)
      : labels(given_labels), row_losses(given_labels.size() * 4), loss(4), probabilities(logits.values.size() * 4) {
    softmax_cross_entropy(logits.matrix(), labels.as<std::int32_t>(), row_losses.as(), loss.as(), probabilities.as(),
                          nullptr);
  }
};

std::vector<std::int32_t> some_labels(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int32_t> labels;
  for (std::int64_t row = 0; row < rows; ++row) labels.push_back(static_cast<std::int32_t>(row * 271 % classes));
  return labels;
}

void expect_loss(const Tensor& logits, const std::vector<std::int32_t>& labels) {
  const Loss got(logits, labels);
  const ExpectedLoss expected = expected_loss(logits, labels);
  expect_within(doubles(got.row_losses), expected.rows, expected.row_bounds, "row");
  expect_within(doubles(got.probabilities), expected.probabilities, expected.bounds, "probability");
  Sum all;
  double rows_off = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    all.add(expected.rows[row]);
    rows_off += expected.row_bounds[row];
  }
  EXPECT_NEAR(doubles(got.loss)[0], all.value / all.terms, (all.bound() + rows_off) / all.terms);

  const float weight = 0.4F, scale = 1024;
  const Memory loss_scale(std::vector<float>{scale});
  const Tensor dlogits(logits.type, logits.shape, Gap{logits.pitch - logits.channels()});
  softmax_cross_entropy_backward(got.probabilities.as(), got.labels.as<std::int32_t>(), weight, loss_scale.as(),
                                 dlogits.matrix(), nullptr);
  std::vector<double> diffs = doubles(got.probabilities), bounds;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    diffs[row * static_cast<std::size_t>(logits.channels()) + static_cast<std::size_t>(labels[row])] -= 1;
  }
  for (double& diff : diffs) {
    diff *= static_cast<double>(weight) * static_cast<double>(scale) / all.terms;
    bounds.push_back(2 * kEpsilon * std::abs(diff) + stored(logits.type, diff));
  }
  expect_within(dlogits.read(), diffs, bounds, "dlogit");
}

class SoftmaxTest : public KernelTest {};

TEST_P(SoftmaxTest, CrossEntropy) {
  for (const std::int64_t classes : {1, 10, 1000, 1001}) {
    for (const std::int64_t rows : {1, 5}) {
      for (const std::int64_t gap : {0, 7}) {
        SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(classes) + " and " + std::to_string(gap));
        expect_loss(Tensor(GetParam(), {rows, classes}, 1, Gap{gap}), some_labels(rows, classes));
      }
    }
  }
}

TEST_P(SoftmaxTest, LogitsWhoseExponentialsOverflow) {
  constexpr std::int64_t kClasses = 300;
  const Shape shape{2, kClasses};
  const std::vector<std::int32_t> labels = some_labels(2, kClasses);
  std::vector<double> wide = models::testing::random_values(shape.count(), 1);
  for (double& x : wide) x *= 1e4;  // exp(x) overflows fp32 from 88.7 on; the largest fp16 is 65504
  expect_loss(Tensor(GetParam(), shape, wide), labels);
  for (const double level : {60000.0, 0.0, -60000.0}) {
    std::vector<double> flat(wide.size(), level);
    expect_loss(Tensor(GetParam(), shape, flat), labels);
    flat[0] = level + 100;  // nearly all the probability is that of class 0, which is the label of row 0
    flat[kClasses] = -kInfinity;
    expect_loss(Tensor(GetParam(), shape, flat), labels);
  }
}

TEST_P(SoftmaxTest, WhatHasNoLossIsNaN) {
  const Shape shape{3, 300};
  const auto row_losses = [&](const std::vector<double>& logits, const std::vector<std::int32_t>& labels) {
    const Loss got(Tensor(GetParam(), shape, logits), labels);
    EXPECT_TRUE(std::isnan(got.loss.read().at(0)));
    return doubles(got.row_losses);
  };
  const std::vector<double> good = models::testing::random_values(shape.count(), 1);
  for (const std::int32_t label : {-1, 300}) {
    const std::vector<double> rows = row_losses(good, {0, label, 299});
    EXPECT_TRUE(std::isfinite(rows.at(0)) && std::isnan(rows.at(1)) && std::isfinite(rows.at(2))) << label;
  }
  for (const double bad : {kInfinity, std::nan("")}) {
    std::vector<double> logits = good;
    logits[299] = bad;
    const std::vector<double> rows = row_losses(logits, {0, 1, 2});
    EXPECT_TRUE(std::isnan(rows.at(0)) && std::isfinite(rows.at(1)) && std::isfinite(rows.at(2))) << bad;
  }
}

/// Runs with one element type only, because the test takes seconds on the host.
class LongSoftmaxTest : public KernelTest {};

TEST_P(LongSoftmaxTest, AMeanOverMoreRowsThanThreads) {
  expect_loss(Tensor(GetParam(), {259, 3}, 1), some_labels(259, 3));
}

INSTANTIATE_TEST_SUITE_P(Types, SoftmaxTest, every_type(), type_name);
INSTANTIATE_TEST_SUITE_P(OneType, LongSoftmaxTest, ::testing::Values(DataType::kBF16), type_name);

}  // namespace
}  // namespace hvd::models::cudnn::kernels::softmax_test
