// Measures how much accuracy Winograd's algorithm costs, and tests the option that turns the algorithm off.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "models/graph/builder.h"
#include "models/train_step.h"
#include "tests/models/small_graphs.h"
#include "tests/models/testing.h"

namespace hvd::models::winograd_test {
namespace {

/// A small version of VGG-16's first layers. Six images of 32 x 32 and of 16 x 16 pixels have enough tiles for
/// Winograd.
Graph small_vgg() {
  using testing::square;
  GraphBuilder b("small_vgg", 6, 32, 10);
  TensorId x = b.relu("relu1", b.conv("conv1", b.images(), 32, square(3, 1, 1), true));
  x = b.relu("relu2", b.conv("conv2", x, 32, square(3, 1, 1), true));
  x = b.max_pool("pool1", x, square(2, 2, 0));
  x = b.relu("relu3", b.conv("conv3", x, 64, square(3, 1, 1), true));
  x = b.relu("relu4", b.conv("conv4", x, 64, square(3, 1, 1), true));
  x = b.max_pool("pool2", x, square(2, 2, 0));
  b.softmax_cross_entropy("loss", b.fully_connected("fc", x, 10));
  return std::move(b).build();
}
constexpr int kLayers = 5;
constexpr double kMaxSum = 6 * 32 * 32;  // number of terms of a weight gradient in the first layers

struct Gradients {
  std::vector<double> values;  ///< the values of all parameters, one parameter after another
  bool winograd = false;       ///< true if some operation used Winograd's algorithm
};

Gradients onednn_gradients(const testing::Rank& rank, bool winograd) {
  const HeapArena arena = make_heap_arena();
  const auto step =
      make_onednn_step(differentiate(small_vgg()), {.profile = true, .winograd = winograd}, arena.allocate);
  testing::RecordingSink sink;
  step->forward_backward({.images = rank.images, .labels = rank.labels}, sink);
  Gradients gradients;
  for (std::size_t p = 0; p < step->slots().size(); ++p) {
    std::vector<float> values(static_cast<std::size_t>(step->slots()[p].shape.count()));
    step->read_gradient(p, values);
    gradients.values.insert(gradients.values.end(), values.begin(), values.end());
  }
  for (const OperationProfile& operation : step->profile()) {
    gradients.winograd = gradients.winograd || operation.implementation.find("wino") != std::string::npos;
  }
  return gradients;
}

std::vector<double> reference_gradients(testing::Rank& rank) {
  rank.forward_backward();
  std::vector<double> gradients;
  for (const ArenaSlot& slot : rank.step->slots()) {
    const auto values = rank.gradients().subspan(slot.offset, static_cast<std::size_t>(slot.shape.count()));
    gradients.insert(gradients.end(), values.begin(), values.end());
  }
  return gradients;
}

double relative_error(const std::vector<double>& got, const std::vector<double>& right) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    error += (got[i] - right[i]) * (got[i] - right[i]);
    size += right[i] * right[i];
  }
  return std::sqrt(error / size);
}

// Compares whole gradients for several batches. Rounding may change the sign of a rectifier's input, or the place of a
// pool's maximum. The gradients of all earlier layers then have errors far larger than rounding, whether Winograd's
// algorithm is used or not. In most batches neither happens, so the test uses the median error of the batches.
TEST(Winograd, WholeGradientsWithItAndWithoutItAgreeWithTheReference) {
  constexpr std::size_t kBatches = 9;
  std::vector<double> with, without;
  bool used = false;
  for (std::size_t k = 0; k < kBatches; ++k) {
    testing::Rank rank(small_vgg(), {.gradient = DataType::kF64}, 6 * k);
    const std::vector<double> right = reference_gradients(rank);
    const Gradients fast = onednn_gradients(rank, true), direct = onednn_gradients(rank, false);
    ASSERT_EQ(direct.values.size(), right.size());
    EXPECT_FALSE(direct.winograd) << "it was not asked for";
    used = fast.winograd;
    with.push_back(relative_error(fast.values, right));
    without.push_back(relative_error(direct.values, right));
    std::cout << "whole gradient off by " << without.back() << " without Winograd, by " << with.back() << " with it\n";
  }
  std::sort(with.begin(), with.end());
  std::sort(without.begin(), without.end());
  // A sum of K terms is off by sqrt(K) u. Each layer has such a sum in the forward and in the backward pass.
  const double bound = 2 * kLayers * std::sqrt(kMaxSum) * 0x1.0p-24;
  EXPECT_LT(without[kBatches / 2], bound);
  if (!used) GTEST_SKIP() << "this oneDNN or processor has no Winograd: the two are one";
  // The transforms of F(4x4, 3x3) amplify rounding errors at most 8.2 times (tests/onednn/bounds.cpp).
  EXPECT_LT(with[kBatches / 2], 8.2 * bound);
  EXPECT_GT(with[kBatches / 2], without[kBatches / 2]);
}

}  // namespace
}  // namespace hvd::models::winograd_test
