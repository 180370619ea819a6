// Tests the scaling kernel, compiled for the host. The kernel must scale every element once and give the same bits as
// hvd::scale().
#include "engine/base/scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "engine/gpu/kernels.h"
#include "tests/base/errors.h"

namespace hvd::scale_test {
namespace {

/// Returns random bits, with NaN, infinities and subnormal values among them.
std::vector<std::byte> random_bytes(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(Philox(1, 2).block(i)[0]);
  return data;
}

TEST(ScaleKernel, GivesTheBitsOfTheHost) {
  for (const DataType type : {DataType::kF32, DataType::kF64, DataType::kF16, DataType::kBF16}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{5000}}) {
      for (const double factor : {2.0, -1.0 / 3, 1e300, 0.0}) {
        std::vector<std::byte> expected = random_bytes(count * size_of(type) + 8);  // the last 8 bytes must not change
        std::vector<std::byte> got = expected;
        scale(expected.data(), count, type, factor);
        gpu::scale_on_gpu(got.data(), count, type, factor, nullptr);
        EXPECT_EQ(got, expected) << count << " " << name(type) << " times " << factor;
      }
    }
  }
}

TEST(ScaleKernel, RefusesIntegers) {
  std::vector<std::byte> data(16);
  const std::string expected = "invalid_argument: elements of int32 cannot be scaled";
  EXPECT_EQ(test::error_of([&] { scale(data.data(), 4, DataType::kI32, 2); }), expected);
  EXPECT_EQ(test::error_of([&] { gpu::scale_on_gpu(data.data(), 4, DataType::kI32, 2, nullptr); }), expected);
}

}  // namespace
}  // namespace hvd::scale_test
