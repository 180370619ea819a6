// Compares the element functions of pools, run on the host, with the reference. The GPU's kernels use the same source.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "models/cudnn/kernels/avg_pool_element.h"
#include "models/cudnn/kernels/max_pool_element.h"
#include "tests/cudnn/element_tensor.h"
#include "tests/cudnn/pooled_shape.h"

namespace hvd::models::cudnn::kernels::pool_element_test {
namespace {

using element_testing::run_rows;
using element_testing::Tensor;
using element_testing::Types;

template <class T>
class PoolElementTest : public ::testing::Test {};
TYPED_TEST_SUITE(PoolElementTest, Types);

const std::vector<Window> kWindows{
    {.kernel_h = 3,
     .kernel_w = 3,
     .stride_h = 2,
     .stride_w = 2,
     .pad_top = 1,
     .pad_bottom = 1,
     .pad_left = 1,
     .pad_right = 1},
    {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2},
    {.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2},
    {.kernel_h = 3, .kernel_w = 2, .stride_h = 1, .stride_w = 3, .pad_top = 2, .pad_left = 1}};

/// Runs a max pool with the body for any window. If the window is square, also runs the body for its size and expects
/// equal results.
template <class T>
void run_max_pool(const Window& window, Tensor<T>& x, Tensor<T>& y, std::vector<std::uint8_t>& where) {
  run_rows(MaxPoolBody<T, 1, 0>{window, x.image(), y.image(), where.data()}, y.shape);
  if (window.kernel_h != window.kernel_w) return;
  Tensor<T> again(y.shape, 0);
  std::vector<std::uint8_t> where_again(where.size());
  const auto run_sized = [&](const auto& body) { run_rows(body, y.shape); };
  if (window.kernel_h == 3) {
    run_sized(MaxPoolBody<T, 1, 3>{window, x.image(), again.image(), where_again.data()});
  } else {
    run_sized(MaxPoolBody<T, 1, 2>{window, x.image(), again.image(), where_again.data()});
  }
  EXPECT_EQ(where_again, where);
  for (std::size_t i = 0; i < y.count(); ++i) {
    EXPECT_EQ(to_float(again.memory[again.at(i)].at[0]), to_float(y.memory[y.at(i)].at[0])) << i;
  }
}

template <class T>
void run_max_pool_backward(const MaxPoolDiff& diff, Tensor<T>& dx) {
  run_rows(MaxPoolBackwardBody<T, 1>{diff, dx.image(), {}}, dx.shape);
  if (diff.window.kernel_h != diff.window.kernel_w) return;
  Tensor<T> again(dx.shape, 0);
  const auto run_tiles = [&](const auto& body) { run_rows(body, body.rows(), dx.channels()); };
  if (diff.window.kernel_h == 3) {
    run_tiles(MaxPoolBackwardTileBody<T, 1, 3, true>{diff, again.image(), {}});
  } else {
    run_tiles(MaxPoolBackwardTileBody<T, 1, 2, true>{diff, again.image(), {}});
  }
  for (std::size_t i = 0; i < dx.count(); ++i) {
    EXPECT_EQ(to_float(again.memory[again.at(i)].at[0]), to_float(dx.memory[dx.at(i)].at[0])) << i;
  }
}

TYPED_TEST(PoolElementTest, MaxPoolBothWays) {
  using T = TypeParam;
  for (const Window& window : kWindows) {
    Tensor<T> x({2, 7, 8, 8}, 4, 1), y(pooled_shape(x.shape, window), 8);
    std::vector<std::uint8_t> where(y.count());
    run_max_pool(window, x, y, where);
    reference::max_pool(window, x.in(), y.out());
    y.expect_near("max pool", 0);
    Tensor<T> dy(y.shape, 2, 2), dx(x.shape, 6);
    run_max_pool_backward({window, where.data(), dy.image(), {}}, dx);
    reference::max_pool_backward(window, x.in(), y.in(), dy.in(), dx.out());
    dx.expect_near("max pool backward", window.kernel_h * window.kernel_w);
    // The pool reads a rectifier's output here. The rectifier's backward is applied to the diff of the pool's output.
    // The result must be the same as with the rectifier's backward after the pool's backward.
    for (std::size_t i = 0; i < x.count(); ++i) {
      x.values[i] = std::max(x.values[i], 0.0);
      x.memory[x.at(i)].at[0] = from_float<T>(static_cast<float>(x.values[i]));
    }
    run_max_pool(window, x, y, where);
    reference::max_pool(window, x.in(), y.out());
    run_max_pool_backward({window, where.data(), dy.image(), y.matrix()}, dx);
    reference::max_pool_backward(window, x.in(), y.in(), dy.in(), dx.out());
    reference::relu_backward(x.in(), dx.in(), dx.out());
    dx.expect_near("rectifier and max pool backward", window.kernel_h * window.kernel_w);
  }
}

TYPED_TEST(PoolElementTest, AvgPoolBothWaysWithAnEpilogue) {
  using T = TypeParam;
  std::vector<Window> windows = kWindows;
  for (const int pad : {0, 1, 2}) windows.push_back({3, 3, 1, 1, pad, 1, 1, pad});
  for (const Window& window : windows) {
    Tensor<T> x({2, 27, 8, 8}, 0, 1), y(pooled_shape(x.shape, window), 8);
    Tensor<T> dy(y.shape, 2, 2), dx(x.shape, 6), other(x.shape, 4, 3);
    const Epilogue epilogue{.add = other.matrix(), .test = x.matrix(), .test_norm = {}};
    const auto expect = [&] {
      reference::avg_pool(window, x.in(), y.out());
      y.expect_near("average pool", window.kernel_h * window.kernel_w);
      reference::avg_pool_backward(window, dy.in(), dx.out());
      for (std::size_t i = 0; i < dx.count(); ++i) dx.values[i] = x.values[i] > 0 ? dx.values[i] + other.values[i] : 0;
      dx.expect_near("average pool backward", window.kernel_h * window.kernel_w + 1);
    };
    run_rows(AvgPoolBody<T, 1>{window, x.image(), y.image()}, y.shape);
    run_rows(AvgPoolBackwardBody<T, 1>{window, dy.image(), dx.image(), epilogue}, dx.shape);
    expect();
    if (window.stride_h != 1 || window.kernel_w != 3) continue;
    y = Tensor<T>(y.shape, 8);
    dx = Tensor<T>(dx.shape, 6);
    const AvgPoolStripBody<T, 1, false, false> forward{window, x.image(), y.image(), {}};
    const AvgPoolStripBody<T, 1, true, true> backward{window, dy.image(), dx.image(), epilogue};
    run_rows(forward, forward.rows(), y.channels());
    run_rows(backward, backward.rows(), dx.channels());
    expect();
  }
}

TYPED_TEST(PoolElementTest, GlobalAvgPoolBothWays) {
  using T = TypeParam;
  Tensor<T> x({3, 5, 4, 8}, 4, 1), y({3, 8}, 0);
  run_rows(GlobalAvgPoolBody<T, 1>{x.image(), y.matrix()}, y.shape);
  reference::global_avg_pool(x.in(), y.out());
  y.expect_near("global average", 20);
  Tensor<T> dy(y.shape, 0, 2), dx(x.shape, 4);
  run_rows(GlobalAvgPoolBackwardBody<T, 1>{dy.matrix(), dx.image(), {}}, dx.shape);
  reference::global_avg_pool_backward(dy.in(), dx.out());
  dx.expect_near("global average backward", 1);
}

}  // namespace
}  // namespace hvd::models::cudnn::kernels::pool_element_test
