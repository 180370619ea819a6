// Tests the whole training step without a GPU. The executor runs on the fake GpuRuntime. The fake cuDNN and the fake
// cuBLASLt compute on the host, and our kernels are compiled for the host. Wrong bindings, wrong order and missing work
// show as gradients that differ from the reference's, as races, or as calls that differ from the plan.
#include "models/cudnn/run/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>

#include "models/zoo/zoo.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/lowering/program_check.h"
#include "tests/cudnn/run/machine.h"

namespace hvd::models::cudnn::testing::executor_test {
namespace {

using namespace std::chrono_literals;

// ---- Order and addresses, on the networks of the benchmark ----

Graph small_network(const std::string& model) {
  const std::int64_t size = model == "inception3" ? 75 : 32;  // Inception V3 accepts no smaller images
  return build_model({.model = model, .batch_size = 2, .image_size = size, .classes = 10, .auxiliary_head = false});
}

/// Returns the number of launches of `group`. All copies without gaps share one launch. Each copy with gaps has its
/// own.
std::size_t calls_of(const Program& program, const Group& group) {
  if (group.operations[0].type != OpType::kCopy) return 1;
  const auto gaps = [&](ValueId id) { return program.value(id).parent != kNoValue; };
  const auto apart = std::count_if(group.operations.begin(), group.operations.end(), [&](const Operation& operation) {
    return gaps(operation.inputs[0]) || gaps(operation.outputs[0]);
  });
  const auto all = static_cast<std::ptrdiff_t>(group.operations.size());
  return static_cast<std::size_t>(apart + (apart < all ? 1 : 0));
}

/// Tests only the order of work. The libraries compute nothing.
class ExecutorOrder : public ::testing::TestWithParam<std::string> {};

TEST_P(ExecutorOrder, EachGroupIsLaunchedOnceInOrderAndGradientsFollow) {
  // The smallest network runs all levels. The larger networks run only level 2, because they add no further cases.
  for (int level = GetParam() == "resnet50" ? 0 : 2; level <= 2; ++level) {
    SCOPED_TRACE(level);
    ServesAll oracle;
    Wish wish{.forward = small_network(GetParam()), .device_bytes = std::size_t{4} << 30};
    wish.plan = {
        .compute = ComputeType::kFp16, .gradient = DataType::kF16, .fusion = reading(ImageLayout::kPadded, level)};
    wish.script = [](Recorder& recorder) { recorder.dry = true; };
    Machine machine(wish, oracle);
    const std::size_t objects = machine.gpu.objects();
    machine.step->load(machine.batch(), Deadline::after(60s));
    machine.recorder.calls.clear();

    // Stores, for each reported gradient, the number of calls made before the report.
    struct Sink final : GradientSink {
      explicit Sink(const Recorder& calls) : recorder(calls) {}
      void gradient_ready(std::size_t parameter) override { told.emplace_back(parameter, recorder.calls.size()); }
      const Recorder& recorder;
      std::vector<std::pair<std::size_t, std::size_t>> told;
    } sink(machine.recorder);
    machine.step->enqueue_forward_backward(sink);
    const std::vector<Call> eager = machine.recorder.calls;

    // The order of calls is the order of the groups. The calls for a group write at least the values that the group
    // writes.
    std::size_t call = 0;
    std::vector<std::size_t> end_of;  // [group]: number of calls made when the group is finished
    for (std::size_t i = 0; i < machine.plan.program.groups.size(); ++i) {
      const Group& group = machine.plan.program.groups[i];
      ASSERT_LT(call, eager.size());
      const std::string kind = eager[call].what.substr(0, eager[call].what.find(' '));
      ASSERT_EQ(kind, name(group.provider)) << operations_text(group);
      std::size_t writes = 0;
      for (std::size_t left = calls_of(machine.plan.program, group); left > 0; --left) {
        for (const Range range : eager[call].writes) writes += range.empty() ? 0U : 1U;
        ++call;
      }
      EXPECT_GE(writes, group.writes.size()) << operations_text(group);
      end_of.push_back(call);
    }
    EXPECT_EQ(call, eager.size());

    ASSERT_EQ(sink.told.size(), machine.step->slots().size());
    std::size_t told = 0;
    for (std::size_t i = 0; i < end_of.size(); ++i) {
      for (; told < machine.ready[i]; ++told) {
        EXPECT_EQ(sink.told[told], std::pair(told, end_of[i])) << "as soon as group " << i << " is enqueued";
      }
    }

    // A repeated step and a captured step must make the same calls with the same addresses, and must allocate nothing.
    machine.recorder.calls.clear();
    machine.step->enqueue_forward_backward(machine.sink);
    EXPECT_EQ(machine.recorder.calls, eager);
    machine.recorder.calls.clear();
    machine.finish();
    {
      gpu::Capture capture(machine.gpu, machine.step->compute_stream());
      machine.step->enqueue_forward_backward(machine.sink);
      EXPECT_EQ(machine.recorder.calls, eager);
      machine.step->enqueue_update();
      const gpu::Graph graph = capture.finish();
    }
    EXPECT_EQ(machine.gpu.objects(), objects);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ExecutorOrder, ::testing::Values("resnet50", "resnet101", "vgg16", "inception3"),
                         [](const auto& instance) { return instance.param; });

// ---- Deterministic mode ----

TEST(Executor, DeterministicModeTakesNoSumsOverRowsInsideAConvolutionsLaunch) {
  ServesAll oracle;
  const auto launches = [](const Plan& plan) {
    std::vector<std::string> list;
    for (const Group& group : plan.program.groups) list.push_back(signature(plan.program, group));
    return list;
  };
  for (const Graph& forward :
       {tiny_resnet(2), tiny_inception(2), small_network("resnet50"), small_network("inception3")}) {
    SCOPED_TRACE(forward.model);
    const Graph graph = differentiate(forward);
    PlanOptions options{.fusion = reading(ImageLayout::kPadded)};
    const auto fused = [](const Program& program) {
      return std::count_if(program.groups.begin(), program.groups.end(), [](const Group& group) {
        return group.provider == Provider::kCudnn && group.operations.size() > 1 &&
               (has(group, OpType::kStatistics) || has(group, OpType::kNormBackwardWeights));
      });
    };
    EXPECT_GT(fused(planned(graph, options, oracle).program), 0) << "or there is nothing to leave out";
    options.deterministic = true;
    const Plan plan = planned(graph, options, oracle);
    EXPECT_EQ(violations(graph, plan.program), std::vector<std::string>());
    EXPECT_EQ(fused(plan.program), 0);
    // The plan must equal the plan for level 1. For every batch norm it must list a fallback with the reason.
    EXPECT_EQ(launches(plan),
              launches(planned(graph, {.fusion = reading(ImageLayout::kPadded, 1), .deterministic = true}, oracle)));
    const auto norms = std::count_if(forward.nodes.begin(), forward.nodes.end(),
                                     [](const Node& node) { return node.kind == OpKind::kBatchNorm; });
    const auto said =
        std::count_if(plan.program.fallbacks.begin(), plan.program.fallbacks.end(), [](const Fallback& fallback) {
          return fallback.wanted == "conv+statistics" && fallback.level == 2 &&
                 fallback.why == "nondeterministic: sums over rows in a convolution's launch";
        });
    EXPECT_EQ(said, norms);
  }
}

TEST(Executor, ADeterministicStepComputesWhatTheReferenceDoes) {
  ServesAll all;
  ServesSingleConvolutions single;  // cuDNN makes no sums, so our kernels do
  for (EngineOracle* oracle : std::initializer_list<EngineOracle*>{&all, &single}) {
    for (const Graph& forward : {tiny_resnet(4), tiny_inception(3)}) {
      SCOPED_TRACE(forward.model);
      Wish wish{.forward = forward};
      wish.plan.deterministic = true;
      compare_with_reference(wish, *oracle);
    }
  }
}

// ---- Graphs, overlap, scales ----

TEST(Executor, AGraphComputesTheSameBitsAsTheSameStepsEager) {
  ServesAll oracle;
  Wish wish{.forward = tiny_inception(3)};
  wish.plan = {.compute = ComputeType::kFp16, .gradient = DataType::kF16, .fusion = reading(ImageLayout::kPadded)};
  Machine eager(wish, oracle, 1);
  std::vector<std::vector<std::byte>> expected;
  std::vector<double> losses;
  const auto learning_rate = [](std::uint64_t number) { return 0.01 / static_cast<double>(1 + number); };
  for (std::uint64_t number = 0; number < 3; ++number) {
    losses.push_back(eager.step->forward_backward(eager.batch(number), eager.sink));
    expected.push_back(eager.gradient_bits());
    eager.step->update({.learning_rate = learning_rate(number)});
  }
  const std::vector<float> weights = eager.parameter(0);

  // The recorder of `captured` replaces the recorder of `eager` (Recorder::current()). `eager` is not used from here
  // on.
  Machine captured(wish, oracle, 2);
  captured.step->load(captured.batch(0), Deadline::after(60s));
  gpu::Graph graph;
  {
    gpu::Capture capture(captured.gpu, captured.step->compute_stream());
    captured.step->enqueue_forward_backward(captured.sink);
    captured.step->enqueue_update();
    graph = capture.finish();
  }
  for (std::uint64_t number = 0; number < 3; ++number) {
    captured.step->load(captured.batch(number), Deadline::after(60s));
    captured.step->set_sgd({.learning_rate = learning_rate(number)});
    captured.gpu.launch(graph, captured.step->compute_stream());
    captured.finish();
    EXPECT_EQ(captured.step->loss(0), losses[number]);
    EXPECT_EQ(captured.gradient_bits(), expected[number]) << number;
  }
  EXPECT_EQ(captured.parameter(0), weights);
}

TEST(Executor, StepsThatAreNotWaitedForDoNotRace) {
  ServesAll oracle;
  for (std::uint64_t schedule = 1; schedule <= 8; ++schedule) {
    const Wish wish{.forward = models::testing::tiny_vgg(2)};
    Machine machine(wish, oracle, schedule);
    for (std::uint64_t number = 0; number < 5; ++number) {
      machine.step->load(machine.batch(number), Deadline::after(60s));
      machine.step->set_sgd({.learning_rate = 0.01 * static_cast<double>(number)});
      machine.step->enqueue_forward_backward(machine.sink);
      machine.step->enqueue_update();
    }
    machine.finish();
    EXPECT_TRUE(std::isfinite(machine.step->loss(0)));
  }  // the destructor of Machine checks for races
}

TEST(Executor, TheLossesOfTwoStepsInFlightAreKeptApart) {
  ServesAll oracle;
  const Wish wish{.forward = models::testing::tiny_vgg(2)};
  Machine one_by_one(wish, oracle);
  std::vector<double> losses;
  for (std::uint64_t number = 0; number < 4; ++number) {
    losses.push_back(one_by_one.step->forward_backward(one_by_one.batch(number), one_by_one.sink));
    one_by_one.step->update({.learning_rate = 0.01});
  }
  Machine ahead(wish, oracle);
  for (std::uint64_t number = 0; number < 4; number += 2) {
    for (const std::size_t place : {0U, 1U}) {
      ahead.step->load(ahead.batch(number + place), Deadline::after(60s));
      ahead.step->set_sgd({.learning_rate = 0.01});
      ahead.step->keep_loss_in(place);
      ahead.step->enqueue_forward_backward(ahead.sink);
      ahead.step->enqueue_update();
    }
    ahead.finish();
    EXPECT_EQ(ahead.step->loss(0), losses[number]);
    EXPECT_EQ(ahead.step->loss(1), losses[number + 1]);
  }
  EXPECT_NE(losses[0], losses[1]);
}

TEST(Executor, AnOverflowLeavesTheWeightsAndHalvesTheScale) {
  ServesAll oracle;
  Wish wish{.forward = models::testing::tiny_vgg(2)};
  wish.plan = {.compute = ComputeType::kFp16, .gradient = DataType::kF16, .fusion = reading(ImageLayout::kPadded, 1)};
  Machine machine(wish, oracle);
  // It is not known whether gradients overflow at the initial scale. The test therefore writes an infinite gradient.
  machine.step->forward_backward(machine.batch(), machine.sink);
  const std::vector<float> before = machine.parameter(0);
  constexpr std::uint16_t kInfinity = 0x7c00;
  std::memcpy(machine.gradients->bytes.data(), &kInfinity, sizeof kInfinity);
  machine.step->update({.learning_rate = 0.1});
  machine.finish();
  EXPECT_EQ(machine.step->skipped_updates(), 1U);
  EXPECT_EQ(machine.parameter(0), before);
  // Each overflow halves the scale until no gradient overflows. The gradients must then equal those of a fixed scale.
  for (int i = 0; i < 20; ++i) {
    machine.step->forward_backward(machine.batch(), machine.sink);
    machine.step->update({.learning_rate = 0});
  }
  machine.finish();
  EXPECT_LT(machine.step->skipped_updates(), 20U);
  machine.step->forward_backward(machine.batch(), machine.sink);
  const std::vector<float> scaled = machine.gradient(0);
  Wish fixed = wish;
  fixed.executor.loss_scale = 64;
  Machine other(fixed, oracle);
  other.step->forward_backward(other.batch(), other.sink);
  const Difference difference(scaled, other.gradient(0));
  EXPECT_LE(difference.error, 0x1.0p-9 * difference.norm);
}

// A loss scale of 512 with a prescale of 0.25 must give the same bits as a loss scale of 128 without a prescale.
TEST(Executor, APrescaleIsInEveryGradient) {
  ServesAll oracle;
  Wish wish{.forward = models::testing::tiny_vgg(2)};
  wish.plan = {.compute = ComputeType::kFp16, .gradient = DataType::kF16, .fusion = reading(ImageLayout::kPadded)};
  const auto gradients = [&](double loss_scale, double prescale) {
    wish.executor = {.loss_scale = loss_scale, .gradient_prescale = prescale};
    Machine machine(wish, oracle);
    machine.step->forward_backward(machine.batch(), machine.sink);
    machine.finish();
    return machine.gradient_bits();
  };
  EXPECT_EQ(gradients(512, 0.25), gradients(128, 1));
  EXPECT_NE(gradients(512, 1), gradients(128, 1));
}

TEST(Executor, WeightsThatWereBroadcastAreUsed) {
  ServesAll oracle;
  Wish wish{.forward = models::testing::tiny_vgg(2)};
  wish.plan = {.compute = ComputeType::kBf16, .gradient = DataType::kBF16, .fusion = reading(ImageLayout::kPadded)};
  Machine machine(wish, oracle);
  const double before = machine.step->forward_backward(machine.batch(), machine.sink);
  const auto state = machine.step->state_to_broadcast();
  EXPECT_EQ(machine.step->memory_space(), MemorySpace::kDevice);
  ASSERT_EQ(state.size(), 1U);  // no running statistics, because there are no batch norms
  machine.gpu.fill(state[0].data(), std::byte{0}, state[0].size(), machine.step->compute_stream());
  machine.step->state_changed();
  const double after = machine.step->forward_backward(machine.batch(), machine.sink);
  EXPECT_NE(before, after);
  EXPECT_NEAR(after, std::log(5.0), 1e-6);  // with all weights zero, the five classes are equally likely
}

// ---- Profile ----

TEST(Executor, AProfileHasEveryLaunchWithWhatItMustComputeAndMove) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  wish.executor.profile = true;
  Machine machine(wish, oracle);
  EXPECT_TRUE(machine.step->profile().empty());
  for (std::uint64_t number = 0; number < 2; ++number) {
    machine.step->forward_backward(machine.batch(number), machine.sink);
  }
  const std::vector<OperationProfile> profile = machine.step->profile();
  ASSERT_EQ(profile.size(), machine.plan.program.groups.size());
  for (std::size_t i = 0; i < profile.size(); ++i) {
    const Group& group = machine.plan.program.groups[i];
    EXPECT_EQ(profile[i].kind, operations_text(group));
    EXPECT_GT(profile[i].seconds, 0) << profile[i].kind;
    EXPECT_GT(profile[i].bytes, 0) << profile[i].kind;
    EXPECT_EQ(profile[i].library, group.provider != Provider::kOwn);
  }
  EXPECT_EQ(profile.front().implementation, "cudnn:1[2=5]");
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::executor_test
