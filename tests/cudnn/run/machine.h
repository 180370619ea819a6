// A step on a fake GPU with libraries that compute on the host (recorder.h), and a comparison of the step with the
// reference.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/cudnn/run/executor.h"
#include "models/graph/autodiff.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/run/difference.h"
#include "tests/cudnn/run/recorder.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing {

using test::FakeRuntime;
using test::FakeWorld;

inline constexpr std::uint64_t kSeed = 5;

/// Returns the path of a folder that no other running test process uses.
inline std::filesystem::path own_folder(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / (name + "." + std::to_string(::getpid()));
}

inline Backends fake_backends() {
  return {.cudnn = Library::with(fake_cudnn()), .cublaslt = CublasLt::with(fake_cublaslt()), .kernels = host_kernels()};
}

/// Makes a plan as the planner does, but asks `oracle` instead of a library. Every cuDNN group has two candidates, of
/// which those in `options.failed` are left out. A group without candidates is refused.
inline Plan planned(const Graph& graph, const PlanOptions& options, EngineOracle& oracle) {
  const auto left = [&options](const Program& program, const Group& group) {
    std::vector<EngineChoice> choices{{.engine = 1, .knobs = {{.type = 2, .value = 5}}}, {.engine = 2}};
    std::erase_if(choices, [&](const EngineChoice& choice) {
      return find_failure(options.failed, signature(program, group), choice.text()) != nullptr;
    });
    return choices;
  };
  class Answers final : public EngineOracle {
   public:
    Answers(EngineOracle& first, const PlanOptions& options, decltype(left)& engines)
        : first_(first), options_(options), engines_(engines) {}
    std::string refusal(const Program& program, const Group& group) override {
      if (std::string why = rejection(group, options_); !why.empty()) return why;
      if (!engines_(program, group).empty()) return first_.refusal(program, group);
      return options_.failed.at(signature(program, group)).begin()->second;
    }

   private:
    EngineOracle& first_;
    const PlanOptions& options_;
    decltype(left)& engines_;
  } answers(oracle, options, left);
  Program program = lower(graph, lowering_options(options), answers);
  Plan plan = assemble(graph, options, std::move(program), left);
  plan.cudnn = "9.19.0";
  plan.device = "fake";
  plan.cublaslt = "13.1.0";
  return plan;
}

struct Wish {
  Graph forward;
  PlanOptions plan = {
      .compute = ComputeType::kFp32, .gradient = DataType::kF32, .fusion = reading(ImageLayout::kPadded)};
  std::vector<FusionOptions> fusions = {};  ///< candidates for PlanSource::fusions; empty: only the fusion of `plan`
  ExecutorOptions executor = {.seed = kSeed};
  std::size_t device_bytes = std::size_t{256} << 20;
  int threads = 1;                             ///< threads that finalise cuDNN plans and call what `script` sets
  const char* device = "fake";                 ///< name of the GPU
  bool alone = true;                           ///< true: no other thread uses a Machine at the same time
  std::function<void(Recorder&)> script = {};  ///< called before the step is made; sets what the libraries refuse
};

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

/// A step on a fake GPU, and a batch for this step.
class Machine {
 public:
  Machine(const Wish& wish, EngineOracle& oracle, std::uint64_t schedule = 1)
      : alone(wish.alone),
        world(schedule),
        gpu(world, 0, {.memory_bytes = wish.device_bytes, .uuid = {}}),
        recorder(gpu) {
    recorder.tf32 = wish.plan.compute == ComputeType::kTf32;
    if (wish.script) wish.script(recorder);
    const Graph graph = differentiate(wish.forward);
    PlanSource plan_source;
    plan_source.fusions = wish.fusions.empty() ? std::vector{wish.plan.fusion} : wish.fusions;
    plan_source.plan = [&](const Graph& step_graph, const FusionOptions& fusion, const EngineFailures& failed) {
      PlanOptions options = wish.plan;
      options.fusion = fusion;
      options.failed = failed;
      ++plans;
      plan = planned(step_graph, options, oracle);
      plan.device = wish.device;
      return plan;
    };
    const Backends backends = fake_backends();
    auto launcher = std::make_unique<GroupLauncher>(gpu, backends, wish.threads);
    step =
        make_executor(graph, plan_source, wish.executor, gpu, backends, std::move(launcher), [this](std::size_t bytes) {
          gradients = gpu.allocate(bytes, "the gradients");
          std::fill(gradients->bytes.begin(), gradients->bytes.end(), std::byte{0});
          return gradients->bytes;
        });
    ready = gradients_ready(graph, plan.program);
    images.resize(static_cast<std::size_t>(graph.tensor(graph.images).shape.count()));
    labels.resize(static_cast<std::size_t>(graph.batch_size));
    synthetic_batch({.seed = 7,
                     .image_elements = static_cast<std::int64_t>(images.size()) / graph.batch_size,
                     .classes = graph.classes},
                    0, images, labels);
    finish();
    recorder.calls.clear();
  }
  ~Machine() {
    step.reset();
    gradients.reset();
    EXPECT_EQ(world.violations(), std::vector<std::string>());
    if (alone) {
      EXPECT_EQ(fake_cudnn_objects(), objects_before);
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void finish() { gpu.synchronize(step->compute_stream(), Deadline::after(std::chrono::seconds(60)), "the fake step"); }
  [[nodiscard]] Batch batch(std::uint64_t number = 0) const {
    return {.images = images, .labels = labels, .first_sample = 0, .step = number};
  }
  [[nodiscard]] std::vector<float> gradient(std::size_t parameter) {
    std::vector<float> values(static_cast<std::size_t>(step->slots()[parameter].shape.count()));
    step->read_gradient(parameter, values);
    return values;
  }
  [[nodiscard]] std::vector<float> parameter(std::size_t index) {
    std::vector<float> values(static_cast<std::size_t>(step->slots()[index].shape.count()));
    step->read_parameter(index, values);
    return values;
  }
  [[nodiscard]] std::vector<std::byte> gradient_bits() const {
    return {gradients->bytes.begin(), gradients->bytes.end()};
  }

  const bool alone;
  std::size_t objects_before = fake_cudnn_objects();
  FakeWorld world;
  FakeRuntime gpu;
  Recorder recorder;
  Plan plan;  ///< the last plan that the step asked for
  int plans = 0;
  std::vector<std::size_t> ready;
  gpu::DeviceMemory gradients;
  std::unique_ptr<DeviceStep> step;
  std::vector<float> images;
  std::vector<std::int32_t> labels;
  models::testing::RecordingSink sink;
};

inline double rounding(ComputeType type) {
  switch (type) {
    case ComputeType::kFp16:
    case ComputeType::kTf32: return 0x1.0p-11;
    case ComputeType::kBf16: return 0x1.0p-8;
    case ComputeType::kFp32: break;
  }
  return 0x1.0p-24;
}

/// Runs one step. Returns the gradients of all parameters, one after another.
inline std::vector<float> gradients_of(Machine& machine) {
  machine.step->forward_backward(machine.batch(), machine.sink);
  std::vector<float> all;
  for (std::size_t p = 0; p < machine.step->slots().size(); ++p) {
    const std::vector<float> gradient = machine.gradient(p);
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

/// Returns the number of terms of the longest sum in a step. The sums are those of matrix products and convolutions,
/// and those of batch norms over the pixels of a channel.
inline double longest_sum(const Graph& graph) {
  std::int64_t longest = 1;
  for (const Node& node : graph.nodes) {
    const Shape& x = graph.tensor(node.inputs[0]).shape;
    if (node.kind == OpKind::kConv || node.kind == OpKind::kFullyConnected) {
      const Shape& w = graph.tensor(node.inputs[1]).shape;
      longest = std::max(longest, w.count() / w[0]);
    }
    if (node.kind == OpKind::kBatchNorm) longest = std::max(longest, x.count() / x[x.rank() - 1]);
  }
  return static_cast<double>(longest);
}

/// Runs two steps and compares loss, gradients and weights with the reference in double.
///
/// The tolerance comes from a second reference, in which each weight is changed by one random rounding. It is the
/// effect of this change and one rounding of the result, both times the number of roundings in a layer: about four
/// stored tensors (its output, its diff, and a vector for each), times about sqrt(K) for sums of K terms. A pointer
/// bound to a wrong tensor causes far larger errors.
inline void compare_with_reference(const Wish& wish, EngineOracle& oracle) {
  const double roundings = 4 * std::sqrt(longest_sum(wish.forward));
  models::testing::Rank rank(wish.forward, {.gradient = DataType::kF64, .seed = kSeed});
  models::testing::Rank shaken(wish.forward, {.gradient = DataType::kF64, .seed = kSeed});
  const double unit = rounding(wish.plan.compute);
  const auto noise = models::testing::random_values(static_cast<std::int64_t>(shaken.parameters().size()), 99);
  for (std::size_t i = 0; i < noise.size(); ++i) shaken.parameters()[i] *= 1 + unit * noise[i];
  Machine machine(wish, oracle);
  const SgdOptions sgd{.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 1e-3, .gradient_scale = 0.5};
  for (std::uint64_t number = 0; number < 2; ++number) {
    const double expected = rank.forward_backward(number);
    const double moved = std::abs(shaken.forward_backward(number) - expected);
    const double loss = machine.step->forward_backward(machine.batch(number), machine.sink);
    EXPECT_NEAR(loss, expected, roundings * (moved + unit * expected)) << "step " << number;
    const auto slots = machine.step->slots();
    const auto compare = [&](const char* what, std::size_t p, const std::vector<float>& got,
                             std::span<const double> all, std::span<const double> all_shaken) {
      const ArenaSlot& slot = rank.step->slots()[p];
      const auto right = all.subspan(slot.offset, slot.count);
      const Difference may(all_shaken.subspan(slot.offset, slot.count), right);
      const Difference is(got, right);
      EXPECT_LE(is.error, roundings * (may.error + unit * is.norm + 1e-9))
          << "step " << number << ", " << what << slot.name;
    };
    for (std::size_t p = 0; p < slots.size(); ++p) {
      compare("gradient of ", p, machine.gradient(p), rank.gradients(), shaken.gradients());
    }
    for (models::testing::Rank* reference : {&rank, &shaken}) reference->step->update(sgd);
    machine.step->update(sgd);
    for (std::size_t p = 0; p < slots.size(); ++p) {
      compare("weights of ", p, machine.parameter(p), rank.parameters(), shaken.parameters());
    }
  }
}

}  // namespace hvd::models::cudnn::testing
