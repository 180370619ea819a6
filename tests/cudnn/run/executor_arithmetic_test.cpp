// Compares whole training steps on the fake GPU (machine.h) with the reference, for all types, levels and oracles.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/run/machine.h"
#include "tests/cudnn/run/rounding_model.h"

namespace hvd::models::cudnn::testing::executor_arithmetic_test {
namespace {

// Tests in fp32, whose roundings are so small that every wrongly bound tensor is noticed.
TEST(ExecutorArithmetic, EveryLevelWhateverIsServedInFp32) {
  for (const Graph& forward :
       {models::testing::every_operation(4), models::testing::tiny_vgg(3), tiny_resnet(4), tiny_inception(3)}) {
    for (int level = 0; level <= 2; ++level) {
      ServesAll all;
      ServesSingleConvolutions single;
      ServesNoBackwardSums plain;
      ServesAtRandom random(3);
      for (EngineOracle* oracle : std::initializer_list<EngineOracle*>{&all, &single, &plain, &random}) {
        SCOPED_TRACE(forward.model + ", level " + std::to_string(level));
        Wish wish{.forward = forward};
        wish.plan.fusion.level = level;
        compare_with_reference(wish, *oracle);
      }
    }
  }
}

TEST(ExecutorArithmetic, SixteenBitTypesAndTheirMasterWeights) {
  ServesAll oracle;
  for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16}) {
    for (const DataType gradient : {storage(compute), DataType::kF32}) {
      for (const Graph& forward : {models::testing::tiny_vgg(4), tiny_inception(6, 19), tiny_resnet(6, 32)}) {
        for (int level = 0; level <= 2; ++level) {
          SCOPED_TRACE(forward.model + ", " + std::string(name(compute)) + ", level " + std::to_string(level));
          Wish wish{.forward = forward};
          wish.plan = {.compute = compute, .gradient = gradient, .fusion = reading(ImageLayout::kPadded, level)};
          wish.executor.loss_scale = 128;
          compare_with_reference(wish, oracle);
        }
      }
    }
  }
}

/// The losses and gradients of two steps, and one weight after the second step.
struct TwoSteps {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> gradients;
  std::vector<float> first_weight;
};

TwoSteps two_steps(const Wish& wish) {
  ServesAll oracle;
  Machine machine(wish, oracle);
  TwoSteps result;
  for (std::uint64_t number = 0; number < 2; ++number) {
    result.losses.push_back(machine.step->forward_backward(machine.batch(number), machine.sink));
    result.gradients.push_back(machine.gradient_bits());
    machine.step->update({.learning_rate = 0.01, .momentum = 0.9});
  }
  result.first_weight = machine.parameter(machine.step->slots().size() - 1);
  return result;
}

// Tuning must time the engines on images with the same gaps as the step's images.
TEST(ExecutorArithmetic, TuningOnImagesWithChannelsOfZeroesChangesNoBit) {
  for (const ComputeType compute : {ComputeType::kTf32, ComputeType::kFp16, ComputeType::kBf16}) {
    for (const DataType gradient : std::set{storage(compute), DataType::kF32}) {
      for (const Graph& forward : {models::testing::tiny_vgg(2), tiny_inception(2), tiny_resnet(2)}) {
        SCOPED_TRACE(forward.model + ", " + std::string(name(compute)));
        Wish wish{.forward = forward};
        wish.plan = {.compute = compute, .gradient = gradient, .fusion = reading(ImageLayout::kPadded)};
        wish.executor.loss_scale = 128;
        const TwoSteps untuned = two_steps(wish);
        wish.executor.tune = true;
        const TwoSteps tuned = two_steps(wish);
        EXPECT_EQ(tuned.losses, untuned.losses);
        EXPECT_EQ(tuned.gradients, untuned.gradients);
        EXPECT_EQ(tuned.first_weight, untuned.first_weight);
      }
    }
  }
}

// step_gpu_test.cpp checks a real GPU against the bounds of RoundingModel. This test checks the same bounds on the fake
// GPU, whose arithmetic is known.
TEST(ExecutorArithmetic, TheRoundingModelHoldsInEveryTypeAndSeesErrors) {
  ServesAll oracle;
  for (RoundingModel& model : rounding_models()) {
    for (const ComputeType compute : {ComputeType::kFp32, ComputeType::kTf32, ComputeType::kFp16, ComputeType::kBf16}) {
      SCOPED_TRACE(model.forward().model + ", " + std::string(name(compute)));
      EXPECT_EQ(model.blind(rounding(compute)), "");
      // Tests all levels with padded images, and levels 1 and 2 also with the default images.
      std::vector<FusionOptions> fusions;
      for (int level = 0; level <= 2; ++level) {
        fusions.push_back(reading(ImageLayout::kPadded, level));
        if (level > 0) fusions.push_back({.level = level});
      }
      for (const FusionOptions& fusion : fusions) {
        const std::string level = text(fusion);
        Wish wish{.forward = model.forward()};
        wish.plan = {.compute = compute, .gradient = storage(compute), .fusion = fusion};
        wish.executor = {.seed = model.seed(), .loss_scale = 128};
        Machine machine(wish, oracle);
        const double loss = machine.step->forward_backward(machine.batch(), machine.sink);
        const auto verdict = model.judge(rounding(compute), loss, [&](std::size_t p) { return machine.gradient(p); });
        EXPECT_EQ(verdict.wrong, "") << level;
        std::cout << model.forward().model << ", " << name(compute) << ", " << level << ": " << verdict.room() << "\n";
        // The model must find the error if a gradient is written one element too early.
        const std::size_t last = machine.step->slots().size() - 1;
        const auto shifted = model.judge(rounding(compute), loss, [&](std::size_t p) {
          std::vector<float> values = machine.gradient(p);
          if (p == last) std::rotate(values.begin(), values.begin() + 1, values.end());
          return values;
        });
        EXPECT_NE(shifted.wrong.find("of " + machine.step->slots()[last].name), std::string::npos) << shifted.wrong;
      }
    }
  }
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::executor_arithmetic_test
