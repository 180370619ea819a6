#include "tests/onednn/bounds.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace hvd::models::testing {

Tensor zeros(const Shape& shape) {
  return {.shape = shape, .data = std::vector<double>(static_cast<std::size_t>(shape.count())), .bound = {}};
}

std::vector<double> sum_bound(double terms, const Tensor& magnitude, double epsilon) {
  std::vector<double> bound(magnitude.data.size());
  const double factor = std::sqrt(terms) * epsilon;
  std::transform(magnitude.data.begin(), magnitude.data.end(), bound.begin(),
                 [factor](double value) { return factor * value; });
  return bound;
}

double winograd_amplification() {
  constexpr std::array<double, 5> kPoints{0, 0.625, -0.625, 1.5, -1.5};
  // `product` holds for each point the product of two row norms: of the filter transform G and of the data transform
  // B^T. Finite points come first, infinity last.
  std::array<double, 6> product{};
  const auto polynomial_norm = [&](std::size_t skipped) {
    // Coefficients of the product of (x - q) over all points q except number `skipped`.
    std::vector<double> c{1};
    for (std::size_t j = 0; j < kPoints.size(); ++j) {
      if (j == skipped) continue;
      std::vector<double> next(c.size() + 1);
      for (std::size_t k = 0; k < c.size(); ++k) {
        next[k + 1] += c[k];
        next[k] -= kPoints.at(j) * c[k];
      }
      c = std::move(next);
    }
    double sum = 0;
    for (const double value : c) sum += value * value;
    return std::sqrt(sum);
  };
  for (std::size_t i = 0; i < kPoints.size(); ++i) {
    const double p = kPoints.at(i);
    double denominator = 1;
    for (std::size_t j = 0; j < kPoints.size(); ++j) {
      if (j != i) denominator *= p - kPoints.at(j);
    }
    const double filter = std::sqrt(1 + p * p + p * p * p * p) / std::abs(denominator);
    product.at(i) = filter * polynomial_norm(i);
  }
  product[5] = polynomial_norm(kPoints.size());
  double largest = 0;
  for (int k = 0; k < 4; ++k) {
    double sum = k == 3 ? product[5] * product[5] : 0;
    for (std::size_t i = 0; i < kPoints.size(); ++i) {
      const double a = std::pow(kPoints.at(i), k) * product.at(i);
      sum += a * a;
    }
    largest = std::max(largest, sum / 3);
  }
  return largest;  // no square root: the value for two dimensions is the square of the value for one dimension
}

std::vector<double> winograd_bound(double terms, const Tensor& magnitude) {
  const double largest = *std::max_element(magnitude.data.begin(), magnitude.data.end());
  const double bound = winograd_amplification() * std::sqrt(terms) * kEpsilon * largest;
  return std::vector<double>(magnitude.data.size(), bound);
}

namespace {

/// The errors that rounding causes in the mean and the variance of one channel.
struct ChannelError {
  double mean = 0;      ///< absolute error
  double variance = 0;  ///< error relative to variance + epsilon
};

ChannelError channel_error(const Tensor& x, std::size_t channels, std::size_t c, double mean, double inv_std) {
  const std::size_t samples = x.data.size() / channels;
  double magnitude = 0, squares = 0;
  for (std::size_t i = 0; i < samples; ++i) {
    const double value = x.data[i * channels + c];
    magnitude += std::abs(value);
    squares += (value - mean) * (value - mean);
  }
  const auto n = static_cast<double>(samples);
  ChannelError error;
  error.mean = std::sqrt(n) * kEpsilon * magnitude / n;
  // The variance is a sum of squares of (x - mean). Rounding errors of x - mean change each square.
  const double deviation = std::sqrt(squares / n);
  const double operand = error.mean + kEpsilon * (magnitude / n + deviation);
  error.variance =
      (std::sqrt(n) * kEpsilon * squares / n + 2 * deviation * operand + operand * operand) * inv_std * inv_std +
      2 * kEpsilon;
  return error;
}

}  // namespace

BatchNormResult batch_norm(const BatchNormAttr& attr, const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  const std::size_t channels = gamma.data.size();
  BatchNormResult r{.y = zeros(x.shape), .mean = zeros(gamma.shape), .inv_std = zeros(gamma.shape)};
  Tensor running_mean = zeros(gamma.shape), running_var = zeros(gamma.shape);
  reference::batch_norm(attr, x.in(), gamma.in(), beta.in(),
                        {.y = r.y.out(),
                         .mean = r.mean.out(),
                         .inv_std = r.inv_std.out(),
                         .running_mean = running_mean.out(),
                         .running_var = running_var.out()});
  r.y.bound.resize(r.y.data.size());
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = r.mean.data[c], inv_std = r.inv_std.data[c];
    const ChannelError error = channel_error(x, channels, c, mean, inv_std);
    for (std::size_t i = c; i < x.data.size(); i += channels) {
      const double shifted = std::abs(x.data[i] - mean), scale = std::abs(gamma.data[c]) * inv_std;
      r.y.bound[i] = scale * (error.mean + kEpsilon * (std::abs(mean) + shifted)) +
                     scale * shifted * (0.5 * error.variance + 3 * kEpsilon) +
                     kEpsilon * (std::abs(r.y.data[i]) + std::abs(beta.data[c]));
    }
  }
  return r;
}

BatchNormDiffs batch_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& inv_std,
                                   const Tensor& dy) {
  const std::size_t channels = gamma.data.size(), samples = x.data.size() / channels;
  const auto n = static_cast<double>(samples);
  BatchNormDiffs r{.dx = zeros(x.shape), .dgamma = zeros(gamma.shape), .dbeta = zeros(gamma.shape)};
  reference::batch_norm_backward(
      {.x = x.in(), .gamma = gamma.in(), .mean = mean.in(), .inv_std = inv_std.in(), .dy = dy.in()}, r.dx.out(),
      r.dgamma.out(), r.dbeta.out());
  r.dx.bound.resize(r.dx.data.size());
  r.dgamma.bound.resize(channels);
  r.dbeta.bound.resize(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const ChannelError error = channel_error(x, channels, c, mean.data[c], inv_std.data[c]);
    double sum_dy = 0;
    double sum_product = 0;    // sum of |dy xhat|
    double operand_error = 0;  // sum of |dy| |error of xhat|
    const auto normal_error = [&](double normal) {
      return inv_std.data[c] * (error.mean + kEpsilon * std::abs(mean.data[c])) +
             std::abs(normal) * (0.5 * error.variance + 3 * kEpsilon);
    };
    for (std::size_t i = c; i < x.data.size(); i += channels) {
      const double normal = (x.data[i] - mean.data[c]) * inv_std.data[c];
      sum_dy += std::abs(dy.data[i]);
      sum_product += std::abs(dy.data[i] * normal);
      operand_error += std::abs(dy.data[i]) * normal_error(normal);
    }
    r.dbeta.bound[c] = std::sqrt(n) * kEpsilon * sum_dy;
    r.dgamma.bound[c] = std::sqrt(n) * kEpsilon * sum_product + operand_error;
    const double scale = std::abs(gamma.data[c]) * inv_std.data[c];
    for (std::size_t i = c; i < x.data.size(); i += channels) {
      const double normal = (x.data[i] - mean.data[c]) * inv_std.data[c], dgamma = r.dgamma.data[c];
      const double dbeta = r.dbeta.data[c];
      const double inner = std::abs(dy.data[i]) + std::abs(dbeta) / n + std::abs(normal * dgamma) / n;
      r.dx.bound[i] =
          scale * (r.dbeta.bound[c] / n + std::abs(normal) * r.dgamma.bound[c] / n +
                   normal_error(normal) * std::abs(dgamma) / n + inner * (0.5 * error.variance + 4 * kEpsilon));
    }
  }
  return r;
}

}  // namespace hvd::models::testing
