// Compares this project's 3 x 3 average pool with its definition in double, and its backward pass with the transposed
// pool.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include "engine/base/float16.h"
#include "models/onednn/kernels.h"
#include "models/onednn/threads.h"

namespace hvd::models::onednn::mean_test {
namespace {

using Image = std::vector<std::uint16_t>;

Image random_image(const Pixels& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-4, 4);
  Image made(shape.images * shape.height * shape.width * shape.channels);
  for (std::uint16_t& value : made) value = float_to_bf16(values(random));
  return made;
}

// Calls body(pixel, neighbour, share). `share` is the weight of the neighbour's value in the mean of the pixel.
template <class Body>
void for_each_share(const Pixels& shape, const Body& body) {
  const auto height = static_cast<int>(shape.height), width = static_cast<int>(shape.width);
  const auto index = [&](std::size_t image, int h, int w) {
    return (image * shape.height + static_cast<std::size_t>(h)) * shape.width + static_cast<std::size_t>(w);
  };
  for (std::size_t image = 0; image < shape.images; ++image) {
    for (int h = 0; h < height; ++h) {
      for (int w = 0; w < width; ++w) {
        const int top = std::max(0, h - 1), bottom = std::min(height - 1, h + 1);
        const int left = std::max(0, w - 1), right = std::min(width - 1, w + 1);
        const double share = 1.0 / ((bottom - top + 1) * (right - left + 1));
        for (int i = top; i <= bottom; ++i) {
          for (int j = left; j <= right; ++j) body(index(image, h, w), index(image, i, j), share);
        }
      }
    }
  }
}

using Case = std::tuple<std::size_t, std::size_t, std::size_t, int>;  // height, width, channels and threads

class Mean : public ::testing::TestWithParam<std::tuple<Case, VectorLevel>> {
 protected:
  [[nodiscard]] static Pixels shape() {
    return {.images = 3, .height = std::get<0>(size()), .width = std::get<1>(size()), .channels = std::get<2>(size())};
  }
  [[nodiscard]] static Case size() { return std::get<0>(GetParam()); }
  [[nodiscard]] static VectorLevel level() { return std::get<1>(GetParam()); }

  // The bound covers nine products and sums in fp32, relative to the sum of the absolute values, and one rounding to
  // bf16.
  static void expect_near(const Image& got, const std::vector<double>& expected, const std::vector<double>& magnitude) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double bound = std::ldexp(std::abs(expected[i]), -8) + std::ldexp(magnitude[i], -20);
      ASSERT_NEAR(bf16_to_float(got[i]), expected[i], bound) << "element " << i;
    }
  }

  const ThreadScope threads_{std::get<3>(size())};
};

TEST_P(Mean, IsOfThePixelsInsideTheImage) {
  const Image x = random_image(shape(), 1);
  Image y(x.size(), 0x7fc0);  // NaN, so that elements that are not written are noticed
  mean_3x3(x.data(), y.data(), shape(), level());
  std::vector<double> expected(x.size()), magnitude(x.size());
  for_each_share(shape(), [&](std::size_t pixel, std::size_t neighbour, double share) {
    for (std::size_t c = 0; c < shape().channels; ++c) {
      const double part = share * bf16_to_float(x[neighbour * shape().channels + c]);
      expected[pixel * shape().channels + c] += part;
      magnitude[pixel * shape().channels + c] += std::abs(part);
    }
  });
  expect_near(y, expected, magnitude);
}

TEST_P(Mean, GradientIsItsTranspose) {
  const Image diff_y = random_image(shape(), 2);
  Image diff_x(diff_y.size(), 0x7fc0);
  mean_3x3_backward(diff_y.data(), diff_x.data(), shape(), level());
  std::vector<double> expected(diff_y.size()), magnitude(diff_y.size());
  for_each_share(shape(), [&](std::size_t pixel, std::size_t neighbour, double share) {
    for (std::size_t c = 0; c < shape().channels; ++c) {
      const double part = share * bf16_to_float(diff_y[pixel * shape().channels + c]);
      expected[neighbour * shape().channels + c] += part;
      magnitude[neighbour * shape().channels + c] += std::abs(part);
    }
  });
  expect_near(diff_x, expected, magnitude);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Mean,
                         ::testing::Combine(::testing::Values(Case{1, 1, 5, 1}, Case{1, 2, 16, 1}, Case{2, 1, 7, 1},
                                                              Case{3, 3, 1, 1}, Case{5, 7, 33, 1}, Case{17, 17, 48, 1},
                                                              Case{17, 17, 48, 2}, Case{9, 35, 40, 3}),
                                            ::testing::ValuesIn(available_levels())));

}  // namespace
}  // namespace hvd::models::onednn::mean_test
