// The training step on a real GPU (label gpu; skipped, with the reason, where there is none): gradients per tensor
// against the reference in double for each type and fusion level, loss curves of the levels together, and a captured
// step equal, bit for bit, to the same step eager. Never run so far: written where there was no GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/runtime.h"
#include "models/cudnn/cudnn_step.h"
#include "models/zoo/zoo.h"
#include "tests/cudnn/difference.h"
#include "tests/cudnn/networks.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing::step_gpu_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeed = 5;

struct Type {
  std::string name;
  DataType compute;
  bool tf32;
  double rounding;
};
const std::vector<Type> kTypes{{"fp32", DataType::kF32, false, 0x1.0p-24},
                               {"tf32", DataType::kF32, true, 0x1.0p-11},
                               {"fp16", DataType::kF16, false, 0x1.0p-11},
                               {"bf16", DataType::kBF16, false, 0x1.0p-8}};

/// A step on GPU 0.
struct GpuStep {
  GpuStep(const Graph& forward, const Type& type, const CudnnOptions& options) : runtime(gpu::make_cuda_runtime(0)) {
    CudnnOptions with = options;
    with.tf32 = type.tf32;
    const DataType gradient = type.compute;
    step = make_cudnn_step(differentiate(forward), {.compute = type.compute, .gradient = gradient, .seed = kSeed}, with,
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

  std::unique_ptr<gpu::Runtime> runtime;
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

const std::vector<Graph>& networks() {
  static const std::vector<Graph> list{tiny_resnet(16, 32, 32), tiny_inception(16, 35, 32),
                                       models::testing::tiny_vgg(16)};
  return list;
}

TEST_P(StepOnGpu, GradientsAreTheReferencesInEveryType) {
  for (const Graph& forward : networks()) {
    models::testing::Rank rank(forward, {.gradient = DataType::kF64, .seed = kSeed});
    const double expected_loss = rank.forward_backward();
    for (const Type& type : kTypes) {
      SCOPED_TRACE(forward.model + ", " + type.name);
      const GpuStep gpu(forward, type, {.level = GetParam(), .loss_scale = 128});
      models::testing::RecordingSink sink;
      const double loss = gpu.step->forward_backward({.images = rank.images, .labels = rank.labels}, sink);
      // Each stored tensor is rounded once, and errors add up as the root of the number of layers; batch norms over few
      // pixels magnify by an order.
      const double tolerance = 16 * std::sqrt(static_cast<double>(forward.nodes.size())) * type.rounding;
      EXPECT_NEAR(loss, expected_loss, tolerance * expected_loss);
      ASSERT_EQ(sink.ready.size(), gpu.step->slots().size());
      double whole_error = 0, whole_norm = 0;
      for (std::size_t p = 0; p < gpu.step->slots().size(); ++p) {
        const ArenaSlot& slot = rank.step->slots()[p];
        const Difference found(gpu.gradient(p), rank.gradients().subspan(slot.offset, slot.count));
        EXPECT_LE(found.error, 4 * tolerance * found.norm + 1e-5) << slot.name;
        whole_error += found.error * found.error;
        whole_norm += found.norm * found.norm;
      }
      EXPECT_LE(std::sqrt(whole_error), tolerance * std::sqrt(whole_norm));
    }
  }
}

TEST_P(StepOnGpu, ACapturedStepIsTheEagerOneBitForBit) {
  for (const Type& type : kTypes) {
    SCOPED_TRACE(type.name);
    const Graph forward = tiny_inception(16, 35, 32);
    const CudnnOptions options{.level = GetParam(), .deterministic = true};
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
      EXPECT_EQ(captured.step->loss(), loss) << number;
      EXPECT_EQ(captured.all_gradients(), expected) << number;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, StepOnGpu, ::testing::Values(0, 1, 2),
                         [](const auto& instance) { return "level" + std::to_string(instance.param); });

class CurvesOnGpu : public StepOnGpu {};

TEST_P(CurvesOnGpu, TwentyStepsOfTheLevelsStayTogether) {
  const Type& type = kTypes.at(static_cast<std::size_t>(GetParam()));
  const Graph forward = build_model({.model = "resnet50", .batch_size = 32, .image_size = 64, .classes = 10});
  const models::testing::Rank data(forward, {});
  std::vector<std::vector<double>> curves;
  for (int level = 0; level <= 2; ++level) {
    const GpuStep gpu(forward, type, {.level = level, .loss_scale = 128});
    models::testing::RecordingSink sink;
    std::vector<double> curve;
    for (std::uint64_t number = 0; number < 20; ++number) {
      curve.push_back(gpu.step->forward_backward(
          {.images = data.images, .labels = data.labels, .first_sample = 0, .step = number}, sink));
      gpu.step->update({.learning_rate = 0.01});
    }
    EXPECT_LT(curve.back(), curve.front()) << "level " << level << " learns the one batch it sees";
    curves.push_back(std::move(curve));
  }
  // Rounding differs from level to level, and twenty steps let it grow; the curves must not part.
  for (std::size_t level = 1; level < curves.size(); ++level) {
    for (std::size_t i = 0; i < curves[level].size(); ++i) {
      EXPECT_NEAR(curves[level][i], curves[0][i], 0.05 * curves[0].front()) << "level " << level << ", step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CurvesOnGpu, ::testing::Range(0, 4),
                         [](const auto& instance) { return kTypes.at(static_cast<std::size_t>(instance.param)).name; });

}  // namespace
}  // namespace hvd::models::cudnn::testing::step_gpu_test
