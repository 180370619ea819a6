// Our kernels on a GPU against the reference: launches, vector widths, and the sums over rows that only the GPU's code
// takes. Skipped, with the reason, where there is no GPU. The arithmetic per element is tested in element_test.cpp.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/float16.h"
#include "engine/base/philox.h"
#include "engine/gpu/device.h"
#include "models/cudnn/kernels/kernels.h"
#include "models/reference/ops.h"

namespace hvd::models::cudnn::kernels {
namespace {

void must(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

/// Device memory with a copy of bytes from the host.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    must(cudaMalloc(&data_, bytes));
    must(cudaMemset(data_, 0xff, bytes));  // NaN in every type: what is not written shows
  }
  template <class T>
  explicit Memory(const std::vector<T>& values) : Memory(values.size() * sizeof(T)) {
    must(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  template <class T = float>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  template <class T = float>
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    must(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

std::uint16_t encoded(DataType type, float value) {
  return type == DataType::kF16 ? float_to_fp16(value) : float_to_bf16(value);
}
float decoded(DataType type, std::uint16_t bits) {
  return type == DataType::kF16 ? fp16_to_float(bits) : bf16_to_float(bits);
}
double rounding(DataType type) {
  return type == DataType::kF32 ? 0x1.0p-24 : type == DataType::kF16 ? 0x1.0p-11 : 0x1.0p-8;
}

/// A matrix on the device and the doubles that it holds exactly.
struct Tensor {
  Shape shape;
  DataType type;
  std::vector<double> values;
  Memory memory;

  Tensor(DataType of, const Shape& dims, std::uint64_t stream)
      : shape(dims), type(of), values(draw(of, dims, stream)), memory(bytes(values)) {}
  Tensor(DataType of, const Shape& dims)
      : shape(dims), type(of), values(static_cast<std::size_t>(dims.count())), memory(values.size() * size_of(of)) {}

  static std::vector<double> draw(DataType type, const Shape& shape, std::uint64_t stream) {
    const Philox generator(1, stream);
    std::vector<double> drawn(static_cast<std::size_t>(shape.count()));
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const float value = generator.normal(i);
      drawn[i] = type == DataType::kF32 ? value : decoded(type, encoded(type, value));
    }
    return drawn;
  }
  [[nodiscard]] std::vector<std::byte> bytes(const std::vector<double>& from) const {
    std::vector<std::byte> out(from.size() * size_of(type));
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto value = static_cast<float>(from[i]);
      const std::uint16_t bits = encoded(type == DataType::kF32 ? DataType::kF16 : type, value);
      if (type == DataType::kF32) std::memcpy(&out[i * 4], &value, 4);
      if (type != DataType::kF32) std::memcpy(&out[i * 2], &bits, 2);
    }
    return out;
  }
  [[nodiscard]] Matrix matrix() const {
    const std::int64_t channels = shape[shape.rank() - 1];
    return {memory.as<void>(), type, shape.count() / channels, channels, channels};
  }
  [[nodiscard]] Image image() const { return {matrix(), shape[0], shape[1], shape[2]}; }
  [[nodiscard]] reference::In in() const { return {values, shape}; }
  reference::Out out() { return {values, shape}; }
  /// The device's result against `values`, rounded once, after `terms` additions in fp32 of terms of about one.
  void expect_near(const char* what, double terms) const {
    must(cudaDeviceSynchronize());
    std::vector<float> got;
    if (type == DataType::kF32) {
      got = memory.read<float>();
    } else {
      for (const std::uint16_t bits : memory.read<std::uint16_t>()) got.push_back(decoded(type, bits));
    }
    ASSERT_EQ(got.size(), values.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], values[i],
                  rounding(type) * std::abs(values[i]) + std::sqrt(terms) * 0x1.0p-22 * (1 + std::abs(values[i])))
          << what << ", element " << i;
    }
  }
};

class KernelTest : public ::testing::TestWithParam<DataType> {
 protected:
  void SetUp() override {
    const gpu::DeviceList list = gpu::list_devices();
    if (list.devices.empty()) GTEST_SKIP() << "no GPU: " << list.reason;
  }
};

// Enough rows for many blocks, with a remainder; channels for wide vectors, and not.
const std::vector<Shape> kShapes{{3, 31, 29, 64}, {2, 5, 7, 2048}, {2, 9, 9, 6}, {1, 1, 1, 8}};

void expect_vector(const char* what, const Memory& got, const std::vector<double>& expected, double terms) {
  must(cudaDeviceSynchronize());
  const std::vector<float> values = got.read();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], std::sqrt(terms) * 0x1.0p-22 * (std::sqrt(terms) + std::abs(expected[i])))
        << what << ", channel " << i;
  }
}

TEST_P(KernelTest, SumsOverRows) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.text());
    const Tensor x(GetParam(), shape, 1);
    const auto channels = static_cast<std::size_t>(shape[3]);
    const double rows = static_cast<double>(shape.count() / shape[3]);
    std::vector<double> sum(channels), square_sum(channels);
    for (std::size_t i = 0; i < x.values.size(); ++i) {
      sum[i % channels] += x.values[i];
      square_sum[i % channels] += x.values[i] * x.values[i];
    }
    const Memory workspace(row_sums_workspace(x.matrix(), 2)), got_sum(channels * 4), got_square(channels * 4),
        got_bias(channels * 4);
    statistics(x.matrix(), got_sum.as(), got_square.as(), workspace.as<void>(), nullptr);
    bias_gradient(x.matrix(), got_bias.as<void>(), DataType::kF32, workspace.as<void>(), nullptr);
    expect_vector("sum", got_sum, sum, rows);
    expect_vector("sum of squares", got_square, square_sum, 4 * rows);
    expect_vector("bias gradient", got_bias, sum, rows);
    const std::vector<float> first = got_sum.read();
    statistics(x.matrix(), got_sum.as(), got_square.as(), workspace.as<void>(), nullptr);
    must(cudaDeviceSynchronize());
    EXPECT_EQ(got_sum.read(), first);  // bit for bit
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

TEST_P(KernelTest, LossAndItsGradient) {
  Tensor logits(GetParam(), {37, 1000}, 1), dlogits(GetParam(), {37, 1000});
  std::vector<std::int32_t> labels(37);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int32_t>(i * 27 % 1000);
  const Memory device_labels(labels), row_losses(37 * 4), loss(4), scale(std::vector<float>{1.0F});
  Tensor probabilities(DataType::kF32, logits.shape);
  softmax_cross_entropy(logits.matrix(), device_labels.as<std::int32_t>(), row_losses.as(), loss.as(),
                        probabilities.memory.as(), nullptr);
  const double expected = reference::softmax_cross_entropy(logits.in(), labels, probabilities.out());
  expect_vector("loss", loss, {expected}, 1000);
  probabilities.expect_near("probabilities", 1000);
  softmax_cross_entropy_backward(probabilities.memory.as(), device_labels.as<std::int32_t>(), 1.0F, scale.as(),
                                 dlogits.matrix(), nullptr);
  reference::softmax_cross_entropy_backward(1, probabilities.in(), labels, dlogits.out());
  dlogits.expect_near("loss gradient", 1000);
  labels[3] = 1000;
  const Memory bad(labels);
  softmax_cross_entropy(logits.matrix(), bad.as<std::int32_t>(), row_losses.as(), loss.as(), probabilities.memory.as(),
                        nullptr);
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(std::isnan(loss.read()[0]));
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
  must(cudaDeviceSynchronize());
  std::vector<float> expected;
  if (GetParam() == DataType::kF32) expected = copied.memory.read<float>();
  if (GetParam() != DataType::kF32) {
    for (const std::uint16_t bits : copied.memory.read<std::uint16_t>()) expected.push_back(decoded(GetParam(), bits));
  }
  EXPECT_EQ(back.memory.read(), expected);  // widening is exact
}

INSTANTIATE_TEST_SUITE_P(Types, KernelTest, ::testing::Values(DataType::kF32, DataType::kF16, DataType::kBF16),
                         [](const auto& instance) { return std::string(hvd::name(instance.param)); });

}  // namespace
}  // namespace hvd::models::cudnn::kernels
