// Tests plans for GPUs that are not present, with the properties of an H200 and of an A100, and with those of an H100,
// a B200 and an L40S as their data sheets give them. Every group of the four networks must find an engine at the
// expected level. Engines compiled in advance must be finalised, and workspaces must stay below the cap. The test is
// skipped with the reason if cuDNN 9.8 is missing, or if cuDNN cannot list engines that it compiles at run time.
//
// The first test covers fp16, bf16 and tf32 at level 2. The next two tests cover the other types and levels. A later
// test covers 16-bit types with fp32 gradients. For each storage type and GPU, the planner asks about equal groups only
// once. The first test prints Planner::questions() after the tables.
#include "models/cudnn/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "models/graph/autodiff.h"
#include "models/zoo/zoo.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/program_check.h"
#include "tests/cudnn/plan/devices.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing::plan_test {
namespace {

/// All tests share one planner for each GPU. A planner remembers cuDNN's answers.
class PlanTest : public ::testing::TestWithParam<std::string> {
 protected:
  static void TearDownTestSuite() { planners().clear(); }
  static Planner& planner() {
    std::unique_ptr<Planner>& its = planners()[GetParam()];
    if (!its) its = make_planner(device_properties(GetParam()));
    return *its;
  }
  void SetUp() override {
    if (const std::string reason = no_planner(); !reason.empty()) GTEST_SKIP() << reason;
  }

 private:
  static std::map<std::string, std::unique_ptr<Planner>>& planners() {
    static std::map<std::string, std::unique_ptr<Planner>> by_device;
    return by_device;
  }
};

Graph network(const std::string& model) { return differentiate(build_model({.model = model, .batch_size = 64})); }

// `convolutions`: all convolutions. `normed`: convolutions before a batch norm. `sums`: data gradients that can also
// make the backward sums of a batch norm. All were counted by hand (lowering_test.cpp).
struct Expected {
  int convolutions, normed, sums;
};
const std::map<std::string, Expected> kExpected{
    {"resnet50", {53, 53, 32}}, {"resnet101", {104, 104, 66}}, {"vgg16", {13, 0, 0}}, {"inception3", {94, 94, 48}}};

// cuDNN 9.19 makes the sums of a batch norm's backward pass only in fp16.
const std::set<std::string> kFp16Alone{"dgrad+norm_apply+drelu+dnorm_weights",
                                       "dgrad+add+norm_apply+drelu+dnorm_weights"};

const std::vector<std::string> kNetworks{"resnet50", "resnet101", "vgg16", "inception3"};

std::map<std::string, int> counts(const Program& program) {
  std::map<std::string, int> table;
  for (const Group& group : program.groups) {
    if (group.provider == Provider::kCudnn) ++table[operations_text(group)];
  }
  return table;
}

std::set<std::string> refused(const Program& program) {
  std::set<std::string> list;
  for (const Fallback& fallback : program.fallbacks) list.insert(fallback.wanted);
  return list;
}

/// Checks what must hold for every plan, whatever its options.
void check(const Graph& graph, const Plan& plan) {
  for (const std::string& wrong : violations(graph, plan.program)) ADD_FAILURE() << wrong;
  ASSERT_EQ(plan.engine_of.size(), plan.program.groups.size());
  for (std::size_t i = 0; i < plan.program.groups.size(); ++i) {
    const Group& group = plan.program.groups[i];
    ASSERT_EQ(plan.engine_of[i] >= 0, group.provider == Provider::kCudnn);
    EXPECT_TRUE(group.provider != Provider::kOwn || !own_kernel(group).empty()) << operations_text(group);
    EXPECT_LE(group.level, plan.options.fusion.level);
  }
  for (const EngineCandidates& engine : plan.engines) {
    ASSERT_FALSE(engine.choices.empty()) << engine.signature;
    EXPECT_LE(engine.choices.size(), plan.options.candidates);
    for (const EngineChoice& choice : engine.choices) {
      EXPECT_EQ(choice.finalised, !choice.compiled_at_run_time) << engine.signature;
      EXPECT_LE(choice.workspace_bytes, plan.options.workspace_cap_bytes) << engine.signature;
      EXPECT_FALSE(choice.sums_in_16_bits) << engine.signature;
      EXPECT_FALSE(plan.options.deterministic && choice.nondeterministic) << engine.signature;
      EXPECT_FALSE(plan.options.compute == ComputeType::kFp32 && choice.tensor_cores) << engine.signature;
    }
  }
}

TEST_P(PlanTest, EveryGroupOfTheNetworksFindsAnEngineAtTheLevelExpected) {
  for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16, ComputeType::kTf32}) {
    for (const std::string& model : kNetworks) {
      SCOPED_TRACE(model + ", " + std::string(name(compute)));
      const Graph graph = network(model);
      const Plan plan = planner().plan(
          graph, {.compute = compute, .gradient = storage(compute), .fusion = reading(ImageLayout::kPadded)});
      check(graph, plan);
      const Expected& expected = kExpected.at(model);
      auto table = counts(plan.program);
      // In fp16 cuDNN serves everything that lower() asks for, except statistics of a ResNet's 7 x 7 stem. For the
      // stem, and for other types than fp16, cuDNN makes statistics only with engines that it compiles at run time. A
      // newer version may serve more, and so does a B200 for the stem.
      for (const std::string& what : refused(plan.program)) {
        EXPECT_TRUE(what == "conv+statistics" || (compute != ComputeType::kFp16 && kFp16Alone.contains(what))) << what;
      }
      const int stems = model.starts_with("resnet") ? 1 : 0;
      const int sums =
          table["dgrad+norm_apply+drelu+dnorm_weights"] + table["dgrad+add+norm_apply+drelu+dnorm_weights"];
      EXPECT_GE(table["conv+statistics"], compute == ComputeType::kFp16 ? expected.normed - stems : 0);
      EXPECT_EQ(table["conv+statistics"] + table["conv"], expected.normed);
      EXPECT_EQ(table["conv+bias+relu"], expected.convolutions - expected.normed);
      EXPECT_EQ(table["wgrad"], expected.convolutions);
      if (compute == ComputeType::kFp16) {
        EXPECT_EQ(sums, expected.sums);
      }
      EXPECT_EQ(sums + table["dgrad"] + table["dgrad+add"] + table["dgrad+drelu"] + table["dgrad+add+drelu"],
                expected.convolutions - 1);  // no data gradient for the images
    }
  }
  const Planner::Questions questions = planner().questions();
  std::cout << GetParam() << ": heuristics asked " << questions.asked << " times, answered " << questions.known
            << " times from an equal group\n";
  EXPECT_GT(questions.known, 3 * questions.asked);
}

/// Checks the number of convolutions in each direction (forward, data gradient, weight gradient). Ignores how they are
/// fused.
void expect_all_convolutions(const Program& program, const Expected& expected) {
  int forward = 0, data = 0, weights = 0;
  for (const auto& [operations, count] : counts(program)) {
    if (operations.find("wgrad") != std::string::npos) {
      weights += count;
    } else if (operations.find("dgrad") != std::string::npos) {
      data += count;
    } else if (operations.find("conv") != std::string::npos) {
      forward += count;
    }
  }
  EXPECT_EQ(forward, expected.convolutions);
  EXPECT_EQ(data, expected.convolutions - 1);  // no data gradient for the images
  EXPECT_EQ(weights, expected.convolutions);
}

/// Returns the number of batch norms whose statistics are finalised by one of our kernels.
std::ptrdiff_t own_norms(const Program& program) {
  return std::count_if(program.groups.begin(), program.groups.end(), [](const Group& group) {
    return group.provider == Provider::kOwn && holds(group, {OpType::kNormFinalize});
  });
}

TEST_P(PlanTest, EveryTypeAtLevelsOneAndZero) {
  // To save time, only two networks are planned for the second GPU. Together they have all kinds of groups.
  const std::vector<std::string> networks =
      GetParam() == "h200" ? kNetworks : std::vector<std::string>{"resnet50", "vgg16"};
  for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16, ComputeType::kTf32, ComputeType::kFp32}) {
    for (const std::string& model : networks) {
      SCOPED_TRACE(model + ", " + std::string(name(compute)));
      const Graph graph = network(model);
      const Expected& expected = kExpected.at(model);
      const Plan level_one = planner().plan(
          graph, {.compute = compute, .gradient = storage(compute), .fusion = reading(ImageLayout::kPadded, 1)});
      check(graph, level_one);
      EXPECT_EQ(refused(level_one.program), std::set<std::string>());
      expect_all_convolutions(level_one.program, expected);
      auto table = counts(level_one.program);
      EXPECT_EQ(table["conv"], expected.normed);
      EXPECT_EQ(table["conv+bias+relu"], expected.convolutions - expected.normed);
      EXPECT_EQ(own_norms(level_one.program), expected.normed);
      if (model == "resnet50") {
        EXPECT_EQ(table["dgrad+add+drelu"], 15);
        EXPECT_EQ(table["dgrad+drelu"], 0) << "the batch norms below undo these rectifiers";
      }
      const Plan level_zero = planner().plan(
          graph, {.compute = compute, .gradient = storage(compute), .fusion = reading(ImageLayout::kPadded, 0)});
      check(graph, level_zero);
      EXPECT_EQ(refused(level_zero.program), std::set<std::string>());
      expect_all_convolutions(level_zero.program, expected);
      EXPECT_EQ(own_norms(level_zero.program), expected.normed);
      for (const auto& [operations, count] : counts(level_zero.program)) {
        EXPECT_EQ(operations.find('+'), std::string::npos) << operations << ", " << count << " times";
      }
    }
  }
}

TEST_P(PlanTest, Fp32AtLevelTwoFindsEnginesWithoutTensorCores) {
  std::set<std::string> known = kFp16Alone;
  known.insert("conv+statistics");  // cuDNN 9.19 makes statistics only on tensor cores
  for (const std::string& model : kNetworks) {
    SCOPED_TRACE(model);
    const Graph graph = network(model);
    const Plan plan = planner().plan(
        graph, {.compute = ComputeType::kFp32, .gradient = DataType::kF32, .fusion = reading(ImageLayout::kPadded)});
    check(graph, plan);  // also checks that fp32 plans have no engine with tensor cores
    for (const std::string& what : refused(plan.program)) EXPECT_TRUE(known.contains(what)) << what;
    const Expected& expected = kExpected.at(model);
    expect_all_convolutions(plan.program, expected);
    EXPECT_EQ(counts(plan.program)["conv+bias+relu"], expected.convolutions - expected.normed);
  }
}

TEST_P(PlanTest, DeterministicModeLeavesNondeterministicEnginesOut) {
  const Graph graph = network("vgg16");
  const auto nondeterministic = [](const Plan& plan) {
    int count = 0;
    for (const EngineCandidates& engine : plan.engines) {
      for (const EngineChoice& choice : engine.choices) count += choice.nondeterministic ? 1 : 0;
    }
    return count;
  };
  // In tf32 some engines add the terms of weight gradients in varying order. 64 candidates include at least one such
  // engine.
  const PlanOptions options{.compute = ComputeType::kTf32,
                            .gradient = DataType::kF32,
                            .fusion = reading(ImageLayout::kPadded, 0),
                            .candidates = 64};
  PlanOptions ordered = options;
  ordered.deterministic = true;
  const Plan any = planner().plan(graph, options);
  const Plan fixed = planner().plan(graph, ordered);
  check(graph, any);
  check(graph, fixed);
  EXPECT_GT(nondeterministic(any), 0);
  EXPECT_EQ(nondeterministic(fixed), 0);
}

TEST_P(PlanTest, DeterministicModeFallsBackToLevelOneWhereAConvolutionWouldSumOverRows) {
  const Graph graph = network("resnet50");
  for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16, ComputeType::kTf32}) {
    SCOPED_TRACE(name(compute));
    PlanOptions options{.compute = compute,
                        .gradient = storage(compute),
                        .fusion = reading(ImageLayout::kPadded, 1),
                        .deterministic = true};
    const Plan level_one = planner().plan(graph, options);
    options.fusion.level = 2;
    const Plan level_two = planner().plan(graph, options);
    check(graph, level_two);
    EXPECT_EQ(counts(level_two.program), counts(level_one.program));
    const std::vector<std::string> lines = fallback_lines(graph, level_two.program);
    EXPECT_NE(
        std::find(lines.begin(), lines.end(),
                  "not served at 53 nodes (conv1, ...): level 2, conv+statistics: nondeterministic: sums over rows "
                  "in a convolution's launch"),
        lines.end())
        << lines.front();
  }
}

TEST_P(PlanTest, Fp32UsesNoTensorCoresAndTf32Does) {
  const Graph graph = network("vgg16");
  const Plan fp32 = planner().plan(
      graph, {.compute = ComputeType::kFp32, .gradient = DataType::kF32, .fusion = reading(ImageLayout::kPadded, 0)});
  const Plan tf32 = planner().plan(
      graph, {.compute = ComputeType::kTf32, .gradient = DataType::kF32, .fusion = reading(ImageLayout::kPadded, 0)});
  check(graph, fp32);
  check(graph, tf32);
  std::size_t with = 0;
  for (const EngineCandidates& engine : tf32.engines) with += engine.choices[0].tensor_cores ? 1U : 0U;
  EXPECT_GT(2 * with, tf32.engines.size());
}

// If the planned engines fail, the planner must ask for cuDNN's other engine lists. If all engines fail, the group must
// fall back.
TEST_P(PlanTest, EnginesThatFailedAreNotPlannedAgain) {
  const auto planner = make_planner(device_properties(GetParam()));
  const Graph graph = network("vgg16");
  PlanOptions options{.fusion = reading(ImageLayout::kPadded, 1)};
  const std::string concerned = planner->plan(graph, options).engines.at(0).signature;
  ASSERT_NE(concerned.find("relu"), std::string::npos) << concerned;
  int plans = 0;
  Plan plan;
  for (;;) {
    plan = planner->plan(graph, options);
    const auto engine = std::find_if(plan.engines.begin(), plan.engines.end(), [&](const EngineCandidates& candidates) {
      return candidates.signature == concerned;
    });
    if (engine == plan.engines.end()) break;
    ++plans;
    for (const EngineChoice& choice : engine->choices) {
      EXPECT_TRUE(options.failed[concerned].emplace(choice.text(), "struck out").second) << choice.text();
    }
    ASSERT_LT(plans, 64);
  }
  EXPECT_GT(plans, 1) << "more than the first eight";
  check(graph, plan);
  ASSERT_FALSE(plan.program.fallbacks.empty());
  EXPECT_EQ(plan.program.fallbacks[0].wanted, "conv+bias+relu");
  EXPECT_NE(plan.program.fallbacks[0].why.find("struck out"), std::string::npos) << plan.program.fallbacks[0].why;
}

TEST_P(PlanTest, ASmallCapOnTheWorkspaceIsKept) {
  const Graph graph = network("resnet50");
  const Plan wide = planner().plan(graph, {.fusion = reading(ImageLayout::kPadded, 0)});
  const std::size_t cap = wide.workspace_bytes / 2;
  ASSERT_GT(cap, 0U);
  const Plan tight = planner().plan(graph, {.fusion = reading(ImageLayout::kPadded, 0), .workspace_cap_bytes = cap});
  check(graph, tight);
  EXPECT_LE(tight.workspace_bytes, cap);
}

TEST_P(PlanTest, GradientsInFp32FromSixteenBitProductsAreCopied) {
  for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16}) {
    for (const std::string& model : kNetworks) {
      for (const int level : {0, 1, 2}) {
        SCOPED_TRACE(model + ", " + std::string(name(compute)) + ", level " + std::to_string(level));
        const Graph graph = network(model);
        const Plan plan = planner().plan(
            graph, {.compute = compute, .gradient = DataType::kF32, .fusion = reading(ImageLayout::kPadded, level)});
        check(graph, plan);
        std::set<std::string> wrong = refused(plan.program);
        for (const Group& group : plan.program.groups) {
          for (const Operation& operation : group.operations) {
            if (operation.type != OpType::kConvBackwardWeights) continue;
            EXPECT_EQ(plan.program.value(operation.outputs[0]).type, storage(compute));
          }
        }
        if (level == 2) {
          for (const std::string& known : kFp16Alone) wrong.erase(known);
          wrong.erase("conv+statistics");  // refused for the stem in fp16 and for all convolutions in bf16
        }
        EXPECT_EQ(wrong, std::set<std::string>());
        expect_all_convolutions(plan.program, kExpected.at(model));
        EXPECT_EQ(gradients_ready(graph, plan.program).back(), graph.parameters.size());
      }
    }
  }
}

/// Returns, for every group that reads images, the group's operations as text and its engines.
std::vector<std::pair<std::string, const EngineCandidates*>> readers_of_images(const Graph& graph, const Plan& plan) {
  std::vector<std::pair<std::string, const EngineCandidates*>> list;
  const ValueId images = placement(plan.program, images_of(graph, plan.program)).root;
  for (std::size_t i = 0; i < plan.program.groups.size(); ++i) {
    const std::vector<ValueId> read = reads(plan.program.groups[i]);
    if (std::find(read.begin(), read.end(), images) == read.end()) continue;
    const EngineCandidates& engine = plan.engines.at(static_cast<std::size_t>(plan.engine_of[i]));
    list.emplace_back(operations_text(plan.program.groups[i]), &engine);
  }
  return list;
}

TEST_P(PlanTest, ImagesWithChannelsAddedAreReadByTensorCores) {
  for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16, ComputeType::kTf32}) {
    for (const std::string& model : kNetworks) {
      const Graph graph = network(model);
      SCOPED_TRACE(model + ", " + std::string(name(compute)));
      const PlanOptions options{
          .compute = compute, .gradient = storage(compute), .fusion = reading(ImageLayout::kPadded)};
      const Plan plan = planner().plan(graph, options);
      check(graph, plan);
      const auto readers = readers_of_images(graph, plan);
      ASSERT_EQ(readers.size(), 2U) << "forward, and the weight gradient";
      for (const auto& [operations, engine] : readers) {
        std::cout << model << ", " << name(compute) << ", " << engine->signature << "\n    first "
                  << engine->choices[0].text() << "; of engines";
        for (const EngineChoice& choice : engine->choices) {
          std::cout << " " << choice.engine << (choice.tensor_cores ? "" : " (no tensor cores)")
                    << (choice.compiled_at_run_time ? " (compiled at run time)" : "");
        }
        std::cout << "\n";
        EXPECT_FALSE(engine->choices[0].compiled_at_run_time) << operations;
        // Engines that also make statistics never report whether they use tensor cores.
        const bool says = operations.find("statistics") == std::string::npos;
        EXPECT_TRUE(!says || std::any_of(engine->choices.begin(), engine->choices.end(),
                                         [](const EngineChoice& choice) { return choice.tensor_cores; }))
            << operations;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanTest, ::testing::Values("h200", "a100", "h100", "b200", "l40s"),
                         [](const auto& instance) { return instance.param; });

TEST(PlannerTest, SaysWhatIsWrongWithADescription) {
  if (const std::string reason = planner_unsupported_reason(); !reason.empty()) GTEST_SKIP() << reason;
  models::testing::expect_error(Errc::kInvalidArgument, {"description of a GPU"},
                                [] { make_planner("{\"deviceVer\":"); });
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::plan_test
