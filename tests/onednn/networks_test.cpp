// Every operation of every network against the double-precision reference, at reduced image size.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "models/graph/autodiff.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"
#include "tests/onednn/teacher_forcing.h"

namespace hvd::models {
namespace {

struct Case {
  const char* name;
  ModelSpec spec;
  DataType compute, gradient;
};

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
  for (const auto& failure : result.failures) {
    ADD_FAILURE() << failure.node << ": " << failure.tensor << " is off by " << failure.error << ", bound "
                  << failure.bound;
  }
}

constexpr DataType kF32 = DataType::kF32;
constexpr DataType kBF16 = DataType::kBF16;

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
}  // namespace hvd::models
