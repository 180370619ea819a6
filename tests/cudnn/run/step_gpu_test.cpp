// Tests the training step on a real GPU (label gpu; skipped with the reason without a GPU). For each type and fusion
// level, the gradient of each tensor is compared with the reference in double. The bounds are those that the fake GPU
// keeps too (rounding_model.h). The loss curves of different levels must stay close to each other. In deterministic
// mode, a repeated step and a captured step must give the same bits as the first eager step.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/gpu/runtime.h"
#include "models/cudnn/run/cudnn_step.h"
#include "models/zoo/zoo.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/run/difference.h"
#include "tests/cudnn/run/rounding_model.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing::step_gpu_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeed = 5;

struct Type {
  std::string name;
  DataType compute;
  bool tf32;
  double rounding;      ///< rounding of products or of tensors, whichever is larger
  double curve_spread;  ///< allowed distance of loss curves, relative to the first loss; see CurvesOnGpu
};
const std::vector<Type> kTypes{{"fp32", DataType::kF32, false, kFp32Rounding, 0.007},
                               {"tf32", DataType::kF32, true, 0x1.0p-11, 0.05},
                               {"fp16", DataType::kF16, false, 0x1.0p-11, 0.05},
                               {"bf16", DataType::kBF16, false, 0x1.0p-8, 0.16}};

/// A step on the first GPU (GPU 0).
struct GpuStep {
  GpuStep(const Graph& forward, const Type& type, const CudnnOptions& options, std::uint64_t seed = kSeed)
      : runtime(gpu::make_cuda_runtime(0)) {
    CudnnOptions with = options;
    with.tf32 = type.tf32;
    const DataType gradient = type.compute;
    const int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    step = make_cudnn_step(differentiate(forward),
                           {.compute = type.compute, .gradient = gradient, .threads = threads, .seed = seed}, with,
                           *runtime, [this](std::size_t bytes) {
                             const gpu::Stream stream = runtime->make_stream(gpu::Priority::kNormal);
                             gradients = runtime->allocate(bytes, "the gradients");
                             runtime->fill(gradients->bytes.data(), std::byte{0}, bytes, stream);
                             runtime->synchronize(stream.view(), Deadline::after(60s), "zeroes");
                             return gradients->bytes;
                           });
  }

  void finish() const { runtime->synchronize(step->compute_stream(), Deadline::after(60s), "the step"); }
  [[nodiscard]] std::vector<float> gradient(std::size_t parameter) const {
    std::vector<float> values(static_cast<std::size_t>(step->slots()[parameter].shape.count()));
    step->read_gradient(parameter, values);
    return values;
  }
  [[nodiscard]] std::vector<std::vector<float>> all_gradients() const {
    std::vector<std::vector<float>> all;
    for (std::size_t p = 0; p < step->slots().size(); ++p) all.push_back(gradient(p));
    return all;
  }

  std::unique_ptr<gpu::GpuRuntime> runtime;
  gpu::DeviceMemory gradients;
  std::unique_ptr<DeviceStep> step;
  models::testing::RecordingSink sink;
};

class StepOnGpu : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const gpu::DeviceList list = gpu::list_devices();
    if (list.devices.empty()) GTEST_SKIP() << "no GPU: " << list.reason;
    if (const std::string why = cudnn_unsupported_reason(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// Returns the ways to fuse that are tested at `level`. Level 0 is the reference for levels 1 and 2, and is tested only
/// with padded images. Levels 1 and 2 are tested with the default images and with padded images.
std::vector<FusionOptions> fusions_at(int level) {
  switch (level) {
    case 0: return {reading(ImageLayout::kPadded, 0)};
    case 1: return {{.level = 1}, reading(ImageLayout::kPadded, 1)};
    default: break;
  }
  return {{.level = 2}, reading(ImageLayout::kPadded)};
}

/// Returns the models. All levels share these objects, so that references and bounds are computed only once.
std::vector<RoundingModel>& models_to_meet() {
  static std::vector<RoundingModel> list = rounding_models();
  return list;
}

TEST_P(StepOnGpu, GradientsAreTheReferencesInEveryType) {
  for (RoundingModel& model : models_to_meet()) {
    for (const Type& type : kTypes) {
      SCOPED_TRACE(model.forward().model + ", " + type.name);
      EXPECT_EQ(model.blind(type.rounding), "");
      for (const FusionOptions& fusion : fusions_at(GetParam())) {
        SCOPED_TRACE(text(fusion));
        const GpuStep gpu(model.forward(), type, {.fusion = fusion, .loss_scale = 128}, model.seed());
        models::testing::RecordingSink sink;
        const double loss = gpu.step->forward_backward(model.batch(), sink);
        ASSERT_EQ(sink.ready.size(), gpu.step->slots().size());
        const auto verdict = model.judge(type.rounding, loss, [&](std::size_t p) { return gpu.gradient(p); });
        EXPECT_EQ(verdict.wrong, "");
        std::cout << model.forward().model << ", " << type.name << ", " << text(fusion) << ": " << verdict.room()
                  << "\n";
      }
    }
  }
}

/// Repeats a step on the same GpuStep. Returns the first difference from the bits of the first step; empty if there is
/// none.
std::string repeated(const Type& type, const CudnnOptions& options) {
  const Graph forward = tiny_inception(16, 35, 32);
  const models::testing::Rank data(forward, {});
  const Batch batch{.images = data.images, .labels = data.labels};
  GpuStep gpu(forward, type, options);
  const double loss = gpu.step->forward_backward(batch, gpu.sink);
  const auto gradients = gpu.all_gradients();
  for (int again = 1; again <= 5; ++again) {
    const double now = gpu.step->forward_backward(batch, gpu.sink);
    std::string difference = first_difference(gpu.step->slots(), gpu.all_gradients(), gradients);
    if (difference.empty() && now != loss) difference = "the loss alone";
    if (!difference.empty()) return "repetition " + std::to_string(again) + ": " + difference;
  }
  return {};
}

// This test and the next one are separate, so that a failure shows whether steps are nondeterministic or only a
// captured step differs.
TEST_P(StepOnGpu, ADeterministicStepRepeatsItsBits) {
  for (const Type& type : kTypes) {
    EXPECT_EQ(repeated(type, {.fusion = {.level = GetParam()}, .deterministic = true, .loss_scale = 128}), "")
        << type.name;
    // Without deterministic mode a step may or may not repeat its bits. The outcome is only reported.
    const std::string difference = repeated(type, {.fusion = {.level = GetParam()}, .loss_scale = 128});
    RecordProperty("repeats_without_deterministic_mode_" + type.name, difference.empty() ? "yes" : "no");
    std::cout << "level " << GetParam() << ", " << type.name
              << ", not deterministic: " << (difference.empty() ? "repeats its bits" : difference) << "\n";
  }
}

TEST_P(StepOnGpu, ACapturedStepIsTheEagerOneBitForBit) {
  for (const Type& type : kTypes) {
    SCOPED_TRACE(type.name);
    const Graph forward = tiny_inception(16, 35, 32);
    const CudnnOptions options{.fusion = {.level = GetParam()}, .deterministic = true};
    const models::testing::Rank data(forward, {});
    const Batch batch{.images = data.images, .labels = data.labels};
    GpuStep eager(forward, type, options), captured(forward, type, options);
    captured.step->load(batch, Deadline::after(60s));
    gpu::Graph graph;
    {
      gpu::Capture capture(*captured.runtime, captured.step->compute_stream());
      captured.step->enqueue_forward_backward(captured.sink);
      captured.step->enqueue_update();
      graph = capture.finish();
    }
    for (std::uint64_t number = 0; number < 3; ++number) {
      Batch now = batch;
      now.step = number;
      const double loss = eager.step->forward_backward(now, eager.sink);
      const auto expected = eager.all_gradients();
      eager.step->update({});
      captured.step->load(now, Deadline::after(60s));
      captured.step->set_sgd({});
      captured.runtime->launch(graph, captured.step->compute_stream());
      captured.finish();
      EXPECT_EQ(captured.step->loss(0), loss) << number;
      EXPECT_EQ(first_difference(captured.step->slots(), captured.all_gradients(), expected), "") << number;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, StepOnGpu, ::testing::Values(0, 1, 2),
                         [](const auto& instance) { return "level" + std::to_string(instance.param); });

// Runs twenty steps on one batch at a learning rate of 3e-5, at which training is not chaotic. The following figures
// were measured with the oneDNN backend. At 3e-5 the loss never rises. It falls from 3.4 to 0.014 in fp32, and to 0.055
// in bf16, whose weights are too coarse for some of the updates. At 1e-4 loss curves differ twice as much as at 3e-5,
// and from 1e-3 on they rise and cross. Other runs started with weights that were each off by one rounding of the type
// (two to three seeds for each type). The loss of these runs differs from the loss of the run with exact weights by at
// most 0.0079 in fp32 (0.2% of the first loss), 0.055 in fp16 and tf32 (1.6%), and 0.177 in bf16 (5.2%). Levels differ
// by roundings of every tensor, so the test allows three times these differences (Type::curve_spread).
class CurvesOnGpu : public StepOnGpu {};

TEST_P(CurvesOnGpu, TwentyStepsOfTheLevelsStayTogether) {
  const Type& type = kTypes.at(static_cast<std::size_t>(GetParam()));
  const Graph forward = build_model({.model = "resnet50", .batch_size = 32, .image_size = 64, .classes = 10});
  const models::testing::Rank data(forward, {});
  std::vector<std::vector<double>> curves;
  for (int level = 0; level <= 2; ++level) {
    const GpuStep gpu(forward, type, {.fusion = {.level = level}, .loss_scale = 128});
    models::testing::RecordingSink sink;
    std::vector<double> curve;
    for (std::uint64_t number = 0; number < 20; ++number) {
      curve.push_back(gpu.step->forward_backward(
          {.images = data.images, .labels = data.labels, .first_sample = 0, .step = number}, sink));
      gpu.step->update({.learning_rate = 3e-5});
    }
    EXPECT_LT(curve.back(), 0.05 * curve.front()) << "level " << level << " learns the one batch it sees";
    curves.push_back(std::move(curve));
  }
  for (std::size_t level = 1; level < curves.size(); ++level) {
    double spread = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < curves[level].size(); ++i) {
      const double now = std::abs(curves[level][i] - curves[0][i]);
      if (now <= spread) continue;
      spread = now;
      at = i;
    }
    EXPECT_LE(spread, type.curve_spread * curves[0].front())
        << "level " << level << ", at step " << at << ": " << curves[level][at] << " instead of " << curves[0][at];
    std::cout << type.name << ", level " << level << ": at most " << spread << " from level 0, at step " << at << "\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CurvesOnGpu, ::testing::Range(0, 4),
                         [](const auto& instance) { return kTypes.at(static_cast<std::size_t>(instance.param)).name; });

}  // namespace
}  // namespace hvd::models::cudnn::testing::step_gpu_test
