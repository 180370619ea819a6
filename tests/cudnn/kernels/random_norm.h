// A batch norm on the device, for tests of kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/cudnn/kernels/kernel_memory.h"

namespace hvd::models::cudnn::kernels {

/// A batch norm with random mean, inv_std, gamma and beta. apply() normalises one element in double.
struct RandomNorm {
  Tensor mean, inv_std, gamma, beta;
  RandomNorm(std::int64_t channels, std::uint64_t stream)
      : mean(DataType::kF32, {channels}, stream),
        inv_std(DataType::kF32, {channels}, stream + 1),
        gamma(DataType::kF32, {channels}, stream + 2),
        beta(DataType::kF32, {channels}, stream + 3) {}
  [[nodiscard]] Norm norm() const {
    return {mean.memory.as(), inv_std.memory.as(), gamma.memory.as(), beta.memory.as()};
  }
  [[nodiscard]] double apply(double x, std::size_t c) const {
    return (x - mean.values[c]) * inv_std.values[c] * gamma.values[c] + beta.values[c];
  }
};

}  // namespace hvd::models::cudnn::kernels
