// Operations without a sliding window.
#include "tests/models/reference/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/models/reference/gemm.h"

namespace hvd::models::reference {
namespace {

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

void fully_connected(const In& x, const In& w, const In& bias, const Out& y) {
  const std::int64_t n = y.shape[0];
  const std::int64_t out = y.shape[1];
  const std::int64_t features = w.shape.count() / out;
  // Compute y^T = w x^T, which reads the weights, the large operand, once and in order.
  const std::vector<double> x_t = transposed(x.data, n, features);
  std::vector<double> y_t(y.data.size(), 0.0);
  gemm({.m = out, .n = n, .k = features}, {.data = w.data.data(), .row_stride = features, .column_stride = 1},
       {.data = x_t.data(), .row_stride = n}, {.data = y_t.data(), .row_stride = n});
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t o = 0; o < out; ++o) y.data[size(row * out + o)] = y_t[size(o * n + row)] + bias.data[size(o)];
  }
}

void fully_connected_backward_weights(const In& x, const In& dy, const Out& dw, const Out& dbias) {
  const std::int64_t n = dy.shape[0];
  const std::int64_t out = dy.shape[1];
  const std::int64_t features = dw.shape.count() / out;
  fill(dw, 0.0);
  gemm({.m = out, .n = features, .k = n}, {.data = dy.data.data(), .row_stride = 1, .column_stride = out},
       {.data = x.data.data(), .row_stride = features}, {.data = dw.data.data(), .row_stride = features});
  fill(dbias, 0.0);
  for (std::size_t i = 0; i < dy.data.size(); ++i) dbias.data[i % size(out)] += dy.data[i];
}

void fully_connected_backward_data(const In& w, const In& dy, const Out& dx) {
  const std::int64_t n = dy.shape[0];
  const std::int64_t out = dy.shape[1];
  const std::int64_t features = w.shape.count() / out;
  fill(dx, 0.0);
  // Use few rows of the weights at a time. The strided accesses to a column of tiles then touch few cache lines, which
  // stay in the cache.
  constexpr std::int64_t kRowsAtOnce = 32;
  for (std::int64_t first = 0; first < out; first += kRowsAtOnce) {
    gemm({.m = n, .n = features, .k = std::min(kRowsAtOnce, out - first)},
         {.data = dy.data.data() + first, .row_stride = out, .column_stride = 1},
         {.data = w.data.data() + first * features, .row_stride = features},
         {.data = dx.data.data(), .row_stride = features});
  }
}

void batch_norm(const BatchNormAttr& attr, const In& x, const In& gamma, const In& beta, const BatchNormOut& out) {
  const std::size_t channels = size(x.shape[3]);
  const double count = static_cast<double>(x.data.size()) / static_cast<double>(channels);
  fill(out.mean, 0.0);
  for (std::size_t i = 0; i < x.data.size(); ++i) out.mean.data[i % channels] += x.data[i] / count;
  std::vector<double> variance(channels, 0.0);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const double difference = x.data[i] - out.mean.data[i % channels];
    variance[i % channels] += difference * difference / count;
  }
  for (std::size_t c = 0; c < channels; ++c) {
    out.inv_std.data[c] = 1.0 / std::sqrt(variance[c] + attr.epsilon);
    const double unbiased = variance[c] * count / std::max(count - 1, 1.0);
    out.running_mean.data[c] = (1 - attr.momentum) * out.running_mean.data[c] + attr.momentum * out.mean.data[c];
    out.running_var.data[c] = (1 - attr.momentum) * out.running_var.data[c] + attr.momentum * unbiased;
  }
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const std::size_t c = i % channels;  // NOLINT(clang-analyzer-core.DivideZero): a tensor has channels
    const double x_hat = (x.data[i] - out.mean.data[c]) * out.inv_std.data[c];
    out.y.data[i] = gamma.data[c] * x_hat + beta.data[c];
  }
}

void batch_norm_backward(const BatchNormIn& in, const Out& dx, const Out& dgamma, const Out& dbeta) {
  const std::size_t channels = size(in.x.shape[3]);
  const double count = static_cast<double>(in.x.data.size()) / static_cast<double>(channels);
  const auto x_hat = [&](std::size_t i) {
    return (in.x.data[i] - in.mean.data[i % channels]) * in.inv_std.data[i % channels];
  };
  fill(dgamma, 0.0);
  fill(dbeta, 0.0);
  for (std::size_t i = 0; i < in.x.data.size(); ++i) {
    dgamma.data[i % channels] += in.dy.data[i] * x_hat(i);
    dbeta.data[i % channels] += in.dy.data[i];
  }
  if (dx.data.empty()) return;
  for (std::size_t i = 0; i < in.x.data.size(); ++i) {
    const std::size_t c = i % channels;
    const double centred = in.dy.data[i] - dbeta.data[c] / count - x_hat(i) * dgamma.data[c] / count;
    dx.data[i] = in.gamma.data[c] * in.inv_std.data[c] * centred;
  }
}

void relu(const In& x, const Out& y) {
  for (std::size_t i = 0; i < x.data.size(); ++i) y.data[i] = std::max(x.data[i], 0.0);
}

void relu_backward(const In& y, const In& dy, const Out& dx) {
  for (std::size_t i = 0; i < y.data.size(); ++i) dx.data[i] = y.data[i] > 0 ? dy.data[i] : 0.0;
}

void global_avg_pool(const In& x, const Out& y) {
  const std::size_t channels = size(x.shape[3]);
  const std::size_t sample = size(x.shape[1] * x.shape[2]) * channels;
  const double weight = static_cast<double>(channels) / static_cast<double>(sample);
  fill(y, 0.0);
  for (std::size_t i = 0; i < x.data.size(); ++i) y.data[i / sample * channels + i % channels] += weight * x.data[i];
}

void global_avg_pool_backward(const In& dy, const Out& dx) {
  const std::size_t channels = size(dx.shape[3]);
  const std::size_t sample = size(dx.shape[1] * dx.shape[2]) * channels;
  const double weight = static_cast<double>(channels) / static_cast<double>(sample);
  for (std::size_t i = 0; i < dx.data.size(); ++i) dx.data[i] = weight * dy.data[i / sample * channels + i % channels];
}

void add(const In& a, const In& b, const Out& y) {
  for (std::size_t i = 0; i < y.data.size(); ++i) y.data[i] = a.data[i] + b.data[i];
}

void concat(std::span<const In> inputs, const Out& y) {
  const std::size_t out_channels = size(y.shape[3]);
  std::size_t first = 0;
  for (const In& x : inputs) {
    const std::size_t channels = size(x.shape[3]);
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      y.data[i / channels * out_channels + first + i % channels] = x.data[i];
    }
    first += channels;
  }
}

void concat_backward(const In& dy, std::span<const Out> diffs) {
  const std::size_t out_channels = size(dy.shape[3]);
  std::size_t first = 0;
  for (const Out& dx : diffs) {
    const std::size_t channels = size(dx.shape[3]);
    for (std::size_t i = 0; i < dx.data.size(); ++i) {
      dx.data[i] = dy.data[i / channels * out_channels + first + i % channels];
    }
    first += channels;
  }
}

void accumulate(std::span<const In> parts, const Out& sum) {
  fill(sum, 0.0);
  for (const In& part : parts) {
    for (std::size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += part.data[i];
  }
}

void dropout(std::span<const std::uint8_t> keep, double scale, const In& x, const Out& y) {
  for (std::size_t i = 0; i < x.data.size(); ++i) y.data[i] = keep[i] != 0 ? scale * x.data[i] : 0.0;
}

double softmax_cross_entropy(const In& logits, std::span<const std::int32_t> labels, const Out& probabilities) {
  const std::size_t classes = size(logits.shape[1]);
  double loss = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0 || size(labels[row]) >= classes) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("label {} of sample {} is outside [0, {})", labels[row], row, classes));
    }
    const auto in = logits.data.subspan(row * classes, classes);
    const auto out = probabilities.data.subspan(row * classes, classes);
    const double maximum = *std::max_element(in.begin(), in.end());  // subtracted, so that exp() does not overflow
    double sum = 0;
    for (std::size_t k = 0; k < classes; ++k) sum += out[k] = std::exp(in[k] - maximum);
    for (double& probability : out) probability /= sum;
    loss += std::log(sum) - (in[size(labels[row])] - maximum);
  }
  return loss / static_cast<double>(labels.size());
}

void softmax_cross_entropy_backward(double weight, const In& probabilities, std::span<const std::int32_t> labels,
                                    const Out& dlogits) {
  const std::size_t classes = size(probabilities.shape[1]);
  const double scale = weight / static_cast<double>(labels.size());
  for (std::size_t i = 0; i < dlogits.data.size(); ++i) {
    const bool target = i % classes == size(labels[i / classes]);
    dlogits.data[i] = scale * (probabilities.data[i] - (target ? 1.0 : 0.0));
  }
}

}  // namespace hvd::models::reference
