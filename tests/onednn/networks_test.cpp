// Compares every operation of every network with the double-precision reference, on small images.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <utility>

#include "models/graph/autodiff.h"
#include "models/graph/builder.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"
#include "tests/models/small_graphs.h"
#include "tests/onednn/teacher_forcing.h"

namespace hvd::models::networks_test {
namespace {

struct Case {
  const char* name;
  ModelSpec spec;
  DataType compute, gradient;
};

void expect_agreement(const testing::Comparison& result) {
  for (const auto& failure : result.failures) {
    ADD_FAILURE() << failure.node << ": " << failure.tensor << " is off by " << failure.error << ", bound "
                  << failure.bound;
  }
}

class NetworkOperations : public ::testing::TestWithParam<Case> {};

TEST_P(NetworkOperations, AgreeWithTheReferenceWithinTheirRounding) {
  const Case& c = GetParam();
  if (const std::string reason = onednn_unsupported_reason(c.compute); !reason.empty()) GTEST_SKIP() << reason;
  const testing::Comparison result =
      testing::compare_operations(differentiate(build_model(c.spec)), c.compute, c.gradient);
  std::cout << result.tensors << " tensors, " << result.elements << " elements, largest error / bound "
            << result.worst_ratio << " at " << result.worst << "\n";
  EXPECT_TRUE(result.equal_to_step) << "memory reuse or an operation in place changes the result";
  EXPECT_GT(result.tensors, 50U);
  expect_agreement(result);
}

constexpr DataType kF32 = DataType::kF32;
constexpr DataType kBF16 = DataType::kBF16;

/// Two convolutions. The first has stride 2 and a kernel that covers several rows of padding. The second has stride 1
/// and a bias. The images are as large as in the whole networks, because bf16 weight gradients are computed in bands of
/// rows only for large images. No average pool follows the convolutions, because it would pass back the same number to
/// all pixels. The rounding errors of a sum of equal numbers do not cancel as the bound assumes (bounds.h).
Graph large_images() {
  using testing::square;
  GraphBuilder b("large_images", 2, 320, 10);
  TensorId x = b.relu("relu1", b.conv("conv1", b.images(), 32, square(7, 2, 3), false));
  x = b.relu("relu2", b.conv("conv2", x, 64, square(3, 1, 1), true));
  b.softmax_cross_entropy("loss", b.fully_connected("fc", b.max_pool("pool", x, square(2, 2, 0)), 10));
  return differentiate(std::move(b).build());
}

class LargeImages : public ::testing::TestWithParam<DataType> {};

TEST_P(LargeImages, WeightGradientsInBandsAgreeWithTheReference) {
  if (const std::string reason = onednn_unsupported_reason(kBF16); !reason.empty()) GTEST_SKIP() << reason;
  const testing::Comparison result = testing::compare_operations(large_images(), kBF16, GetParam());
  EXPECT_TRUE(result.equal_to_step);
  expect_agreement(result);

  // If the step computes weight gradients in bands of rows, the profile has an operation for each sum over bands.
  const HeapArena arena = make_heap_arena();
  const auto step =
      make_onednn_step(large_images(), {.compute = kBF16, .gradient = GetParam(), .profile = true}, arena.allocate);
  if (step->description().find("amx") == std::string::npos) GTEST_SKIP() << "made whole without a matrix unit";
  int sums = 0;
  for (const OperationProfile& operation : step->profile()) {
    if (operation.kind == "conv_backward_weights" && !operation.library && operation.flops > 0) ++sums;
  }
  EXPECT_GE(sums, 2);
}
INSTANTIATE_TEST_SUITE_P(, LargeImages, ::testing::Values(kF32, kBF16),
                         [](const auto& tested) { return std::string(tested.param == kF32 ? "fp32" : "bf16"); });

INSTANTIATE_TEST_SUITE_P(All, NetworkOperations,
                         ::testing::Values(Case{"vgg16_fp32", {"vgg16", 4, 32, 10, false}, kF32, kF32},
                                           Case{"resnet50_fp32", {"resnet50", 4, 64, 10, false}, kF32, kF32},
                                           Case{"resnet101_fp32", {"resnet101", 2, 32, 10, false}, kF32, kBF16},
                                           Case{"inception3_fp32", {"inception3", 2, 75, 10, false}, kF32, kF32},
                                           Case{"vgg16_bf16", {"vgg16", 4, 32, 10, false}, kBF16, kF32},
                                           Case{"resnet50_bf16", {"resnet50", 2, 64, 10, false}, kBF16, kBF16},
                                           Case{"resnet101_bf16", {"resnet101", 2, 32, 10, false}, kBF16, kF32},
                                           Case{"inception3_bf16", {"inception3", 2, 75, 10, false}, kBF16, kF32}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace hvd::models::networks_test
