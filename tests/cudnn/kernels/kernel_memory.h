// Memory for arguments of the kernels under test: on a GPU (cuda_memory.cpp) or on the host (host_memory.cpp).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "models/cudnn/kernels/kernels.h"
#include "tests/cudnn/kernels/elements.h"
#include "tests/models/reference/ops.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::kernels {

/// Returns the reason why there is no GPU. Tests are then skipped with this reason. Empty if tests can run.
std::string no_device();
void* device_allocate(std::size_t bytes);
void device_free(void* data) noexcept;
void device_fill(void* to, int value, std::size_t bytes);
void to_device(void* to, const void* from, std::size_t bytes);
/// Waits for all launched kernels. Then copies from device memory to host memory.
void from_device(void* to, const void* from, std::size_t bytes);

/// Device memory followed by a guard area of the same size. The destructor checks that no kernel wrote to the guard.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : data_(device_allocate(2 * bytes)), bytes_(bytes) {
    device_fill(data_, kUntouched, 2 * bytes);  // NaN in every type, so that elements that no kernel writes are noticed
  }
  template <class T>
  explicit Memory(const std::vector<T>& values) : Memory(values.size() * sizeof(T)) {
    to_device(data_, values.data(), bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    EXPECT_EQ(bytes_at(bytes_), std::vector<std::uint8_t>(bytes_, kUntouched)) << "written behind the end";
    device_free(data_);
  }
  template <class T = float>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  template <class T = float>
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    from_device(values.data(), data_, bytes_);
    return values;
  }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  static constexpr std::uint8_t kUntouched = 0xff;
  [[nodiscard]] std::vector<std::uint8_t> bytes_at(std::size_t offset) const {
    std::vector<std::uint8_t> bytes(bytes_);
    from_device(bytes.data(), static_cast<std::byte*>(data_) + offset, bytes_);
    return bytes;
  }

  void* data_;
  std::size_t bytes_;
};

/// Half the distance from 1 to the next larger number of type `type`.
inline double rounding(DataType type) {
  return type == DataType::kF32 ? 0x1.0p-24 : type == DataType::kF16 ? 0x1.0p-11 : 0x1.0p-8;
}

struct Gap {
  std::int64_t elements = 0;
};

/// A tensor on the device. `values` has its elements as doubles. Each row is followed by a gap, which no kernel may
/// touch.
struct Tensor {
  DataType type;
  Shape shape;
  std::int64_t pitch;
  std::vector<double> values;
  Memory memory;

  /// Makes a tensor whose memory is not initialised. Used for outputs of kernels.
  Tensor(DataType element_type, const Shape& dims, Gap gap = {})
      : type(element_type),
        shape(dims),
        pitch(channels() + gap.elements),
        values(static_cast<std::size_t>(dims.count())),
        memory(static_cast<std::size_t>(rows() * pitch) * size_of(element_type)) {}
  /// Makes a tensor with the elements `given`, rounded to `element_type`.
  Tensor(DataType element_type, const Shape& dims, const std::vector<double>& given, Gap gap = {})
      : Tensor(element_type, dims, gap) {
    std::vector<std::byte> bytes = memory.read<std::byte>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      testing::write_element(bytes.data(), type, at(i), given[i]);
      values[i] = testing::read_element(bytes.data(), type, at(i));
    }
    to_device(memory.as<void>(), bytes.data(), bytes.size());
  }
  /// Makes a tensor whose elements are random values of the standard normal distribution.
  Tensor(DataType element_type, const Shape& dims, std::uint64_t stream, Gap gap = {})
      : Tensor(element_type, dims, models::testing::random_values(dims.count(), stream), gap) {}

  [[nodiscard]] std::int64_t channels() const { return shape[shape.rank() - 1]; }
  [[nodiscard]] std::int64_t rows() const { return shape.count() / channels(); }
  [[nodiscard]] Matrix matrix() const { return {memory.as<void>(), type, rows(), channels(), pitch}; }
  [[nodiscard]] Image image() const { return {matrix(), shape[0], shape[1], shape[2]}; }
  [[nodiscard]] reference::In in() const { return {values, shape}; }
  reference::Out out() { return {values, shape}; }
  /// Returns all elements that are on the device now. Checks that no kernel has written to the gaps.
  [[nodiscard]] std::vector<double> read() const {
    const std::vector<std::byte> bytes = memory.read<std::byte>();
    std::vector<double> got(values.size());
    for (std::size_t i = 0; i < got.size(); ++i) got[i] = testing::read_element(bytes.data(), type, at(i));
    for (std::int64_t row = 0; row < rows(); ++row) {
      for (std::int64_t c = channels(); c < pitch; ++c) {
        EXPECT_TRUE(std::isnan(testing::read_element(bytes.data(), type, row * pitch + c))) << "gap of row " << row;
      }
    }
    return got;
  }
  /// Compares the device's elements with `values`. The tolerance is one rounding of the result and the roundings of
  /// `terms` additions in fp32, where each term is about one.
  void expect_near(const char* what, double terms) const {
    const std::vector<double> got = read();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], values[i],
                  rounding(type) * std::abs(values[i]) + std::sqrt(terms) * 0x1.0p-22 * (1 + std::abs(values[i])))
          << what << ", element " << i;
    }
  }

 private:
  [[nodiscard]] std::int64_t at(std::size_t i) const {
    const auto flat = static_cast<std::int64_t>(i);
    return flat / channels() * pitch + flat % channels();
  }
};

class KernelTest : public ::testing::TestWithParam<DataType> {
 protected:
  void SetUp() override {
    if (const std::string why = no_device(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};

inline auto every_type() { return ::testing::Values(DataType::kF32, DataType::kF16, DataType::kBF16); }
inline std::string type_name(const ::testing::TestParamInfo<DataType>& instance) {
  return std::string(hvd::name(instance.param));
}

}  // namespace hvd::models::cudnn::kernels
