// Tests what a step does if work of its plan fails on the device: engines that fail when they are finalised or first
// launched, and products that do not run. Uses the fakes of machine.h. Wish::script sets what the fakes refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "models/cudnn/plan/winners.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/lowering/program_check.h"
#include "tests/cudnn/run/machine.h"

namespace hvd::models::cudnn::testing::fallback_test {
namespace {

using Operations = std::vector<int>;

bool holds(const Operations& operations, int type) {
  return std::find(operations.begin(), operations.end(), type) != operations.end();
}
bool with_statistics(std::int64_t /*engine*/, const Operations& operations) {
  return holds(operations, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
}
bool with_sums(std::int64_t /*engine*/, const Operations& operations) {
  return holds(operations, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
}
bool fused(std::int64_t /*engine*/, const Operations& operations) { return operations.size() > 1; }

/// Returns the number of groups for cuDNN that contain an operation of `type`.
std::size_t groups_with(const Program& program, OpType type) {
  return static_cast<std::size_t>(std::count_if(program.groups.begin(), program.groups.end(), [&](const Group& group) {
    return group.provider == Provider::kCudnn && has(group, type);
  }));
}

// ---- Groups ----

TEST(Fallback, AnEngineThatDoesNotRunIsReplacedByTheNext) {
  ServesAll oracle;
  const Wish whole{.forward = tiny_resnet(4)};
  for (const bool when_launched : {false, true}) {
    Wish wish = whole;
    wish.script = [=](Recorder& recorder) {
      const auto first = [](std::int64_t engine, const Operations&) { return engine == 1; };
      (when_launched ? recorder.refuses_launch : recorder.refuses_plan) = first;
    };
    Machine machine(wish, oracle);
    const Machine untouched(whole, oracle);
    EXPECT_EQ(program_hash(machine.plan), program_hash(untouched.plan)) << "no group fell back";
    EXPECT_EQ(machine.step->engines().find(" 1[2=5]"), std::string::npos) << machine.step->engines();
    const std::string notes = joined(machine.step->notes());
    const std::string why = when_launched ? "cudnnBackendExecute(conv+statistics): EXECUTION_FAILED\n"
                                          : "cudnnBackendFinalize(plan): NOT_SUPPORTED\n";
    EXPECT_NE(notes.find("conv+statistics: engine 1[2=5] does not run: " + why), std::string::npos) << notes;
    EXPECT_EQ(notes.find("not served"), std::string::npos) << notes;
  }
}

// Several threads that finalise plans must find the same engines and the same refusals as one thread.
TEST(Fallback, ThreadsThatFinaliseChangeNothing) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(4)};
  wish.script = [](Recorder& recorder) {
    recorder.refuses_plan = [](std::int64_t engine, const Operations& operations) {
      return engine == 1 || with_statistics(engine, operations);
    };
  };
  const Machine alone(wish, oracle);
  wish.threads = 4;
  {
    const Machine together(wish, oracle);
    EXPECT_EQ(program_hash(together.plan), program_hash(alone.plan));
    EXPECT_EQ(chosen_text(together.plan), chosen_text(alone.plan));
    EXPECT_EQ(together.step->engines(), alone.step->engines());
    EXPECT_EQ(joined(together.step->notes()), joined(alone.step->notes()));
  }
  wish.executor.tune = true;
  compare_with_reference(wish, oracle);
}

TEST(Fallback, AnEngineAboveTheCapOnTheWorkspaceIsPassedOver) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  wish.plan.workspace_cap_bytes = 2048;
  wish.executor.tune = true;
  wish.script = [](Recorder& recorder) { recorder.second_workspace = 2049; };
  const Machine machine(wish, oracle);
  EXPECT_EQ(machine.step->engines().find(" 2[]"), std::string::npos) << machine.step->engines();
  EXPECT_NE(joined(machine.step->notes()).find("engine 2[] does not run: only with a workspace above the cap of 2048"),
            std::string::npos)
      << joined(machine.step->notes());
}

TEST(Fallback, GroupsThatNoEngineRunsGoDownALevel) {
  ServesAll oracle;
  struct Case {
    const char* why;
    bool when_launched;
    bool (*refuses)(std::int64_t, const Operations&);
    OpType gone;
    const char* wanted;
  };
  for (const Case& c : {Case{"cudnnBackendFinalize(plan): NOT_SUPPORTED", false, &with_statistics, OpType::kStatistics,
                             "conv+statistics"},
                        Case{"EXECUTION_FAILED", true, &with_sums, OpType::kNormBackwardWeights,
                             "dgrad+norm_apply+drelu+dnorm_weights"}}) {
    SCOPED_TRACE(c.wanted);
    Wish wish{.forward = tiny_resnet(4)};
    {
      const Machine untouched(wish, oracle);
      EXPECT_GT(groups_with(untouched.plan.program, c.gone), 0U);
    }
    wish.script = [&](Recorder& recorder) {
      (c.when_launched ? recorder.refuses_launch : recorder.refuses_plan) = c.refuses;
    };
    {
      const Machine machine(wish, oracle);
      EXPECT_EQ(groups_with(machine.plan.program, c.gone), 0U);
      EXPECT_GT(machine.plans, 1);
      const Graph graph = differentiate(wish.forward);
      EXPECT_EQ(violations(graph, machine.plan.program), std::vector<std::string>());
      const auto& list = machine.plan.program.fallbacks;
      const auto fallback_taken =
          std::find_if(list.begin(), list.end(), [&](const Fallback& fallback) { return fallback.wanted == c.wanted; });
      ASSERT_NE(fallback_taken, list.end());
      EXPECT_EQ(fallback_taken->level, 2);
      EXPECT_NE(fallback_taken->why.find(c.why), std::string::npos) << fallback_taken->why;
      const std::string notes = joined(machine.step->notes());
      EXPECT_NE(notes.find(std::string("level 2, ") + c.wanted + ": "), std::string::npos) << notes;
      // The memory layout must fit the program that runs, not the refused program.
      const MemoryLayout layout = lay_out(graph, machine.plan.program, wish.plan.compute, wish.plan.gradient);
      EXPECT_EQ(layout.scratch, machine.plan.memory.scratch);
      EXPECT_EQ(layout.offsets, machine.plan.memory.offsets);
    }
    compare_with_reference(wish, oracle);
  }
}

// Only groups with the refused signature fall back. All other groups keep their level.
TEST(Fallback, OnlyTheGroupsConcernedGoDown) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(4)};
  std::size_t before = 0;
  {
    const Machine untouched(wish, oracle);
    before = groups_with(untouched.plan.program, OpType::kStatistics);
  }
  std::set<std::int64_t> refused;
  wish.script = [&](Recorder& recorder) {
    refused.clear();
    recorder.refuses_plan = [&](std::int64_t engine, const Operations& operations) {
      return with_statistics(engine, operations) && refused.insert(engine).second;  // refuses both engines of one group
    };
  };
  {
    const Machine machine(wish, oracle);
    const std::size_t after = groups_with(machine.plan.program, OpType::kStatistics);
    std::set<NodeId> nodes;
    for (const Fallback& fallback : machine.plan.program.fallbacks) {
      EXPECT_EQ(fallback.wanted, "conv+statistics");
      nodes.insert(fallback.node);
    }
    EXPECT_GT(after, 0U);
    EXPECT_GE(nodes.size(), 1U);
    EXPECT_EQ(after + nodes.size(), before);
  }
  compare_with_reference(wish, oracle);
}

// The engines of level 2 fail when they are finalised, and the engines of level 1 when they are launched.
TEST(Fallback, GoesDownToSingleOperations) {
  ServesAll oracle;
  for (const Graph& forward : {tiny_resnet(4), tiny_inception(3), models::testing::tiny_vgg(3)}) {
    SCOPED_TRACE(forward.model);
    Wish wish{.forward = forward};
    wish.script = [](Recorder& recorder) {
      recorder.refuses_plan = [](std::int64_t engine, const Operations& operations) {
        return with_statistics(engine, operations) || with_sums(engine, operations);
      };
      recorder.refuses_launch = &fused;
    };
    {
      const Machine machine(wish, oracle);
      for (const Group& group : machine.plan.program.groups) {
        EXPECT_TRUE(group.provider != Provider::kCudnn || group.operations.size() == 1) << operations_text(group);
      }
      std::set<int> levels;
      for (const Fallback& fallback : machine.plan.program.fallbacks) levels.insert(fallback.level);
      EXPECT_TRUE(levels.contains(1));
      EXPECT_EQ(levels.contains(2), forward.model != "tiny_vgg") << "a network without batch norms has no level 2";
    }
    compare_with_reference(wish, oracle);
  }
}

TEST(Fallback, ASingleConvolutionThatDoesNotRunIsAnErrorThatSaysAll) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(4)};
  wish.plan.fusion.level = 1;
  wish.script = [](Recorder& recorder) {
    recorder.refuses_launch = [](std::int64_t, const Operations& operations) {
      return holds(operations, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
    };
  };
  const Graph graph = differentiate(wish.forward);
  models::testing::expect_error(Errc::kUnsupported,
                                {"tiny_resnet, ", ": cuDNN has no engine for this weight gradient, 4x", " by 4x",
                                 ", in fp32 (", "cudnnBackendExecute(wgrad): EXECUTION_FAILED); try another --dtype"},
                                [&] { const Machine machine(wish, oracle); });
  EXPECT_EQ(fake_cudnn_objects(), 0U);
}

// An engine's launch breaks the GPU, which then runs nothing. The error must name that engine, and the step may try no
// other engine.
TEST(Fallback, AnEngineThatBreaksTheGpuIsNamed) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(4)};
  int launches = 0;
  wish.script = [&](Recorder& recorder) {
    recorder.refuses_launch = [&](std::int64_t, const Operations&) {
      if (++launches == 3) recorder.gpu().break_down("an illegal memory access");
      return false;
    };
  };
  models::testing::expect_error(Errc::kBackend,
                                {"trying engine 1[2=5] for cudnn; ", ": fake GPU 0: an illegal memory access"},
                                [&] { const Machine machine(wish, oracle); });
  EXPECT_EQ(launches, 3);
}

// ---- Products ----

TEST(Fallback, TheNextAlgorithmRunsAProductThatTheFirstDoesNot) {
  ServesAll oracle;
  const Wish whole{.forward = models::testing::tiny_vgg(3)};
  std::vector<float> expected;
  {
    Machine machine(whole, oracle);
    expected = gradients_of(machine);
    const auto& calls = machine.recorder.calls;
    EXPECT_TRUE(
        std::any_of(calls.begin(), calls.end(), [](const Call& call) { return call.what.ends_with("algorithm 0"); }));
  }
  struct Case {
    std::function<void(Recorder&)> script;
    const char* note;
    const char* runs;
  };
  const auto refuse_first = [](Recorder& recorder) {
    recorder.refuses_product = [](int algorithm, int) { return algorithm == 0; };
  };
  const auto refuse_epilogues = [](Recorder& recorder) {
    recorder.refuses_product = [](int, int epilogue) { return epilogue != CUBLASLT_EPILOGUE_DEFAULT; };
  };
  const auto too_wide = [](Recorder& recorder) { recorder.product_workspace = kProductWorkspaceBytes + 1; };
  for (const Case& c :
       {Case{refuse_first, "1 of 3 algorithms do not run: cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED", "algorithm 1"},
        Case{refuse_epilogues, "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED): a kernel of ours follows",
             "epilogue 1 algorithm 0"},
        Case{too_wide, "", "algorithm 1"}}) {
    SCOPED_TRACE(c.runs);
    Wish wish = whole;
    wish.script = c.script;
    Machine machine(wish, oracle);
    const Difference difference(gradients_of(machine), expected);
    EXPECT_GT(difference.norm, 0);
    EXPECT_LE(difference.error, 1e-5 * difference.norm);
    EXPECT_NE(joined(machine.step->notes()).find(c.note), std::string::npos) << joined(machine.step->notes());
    for (const Call& call : machine.recorder.calls) {
      if (!call.what.starts_with("cublaslt")) continue;
      EXPECT_TRUE(call.what.ends_with(c.runs)) << call.what;
    }
  }
}

TEST(Fallback, EpiloguesThatCublasLtLacksAreOurs) {
  ServesAll oracle;
  Wish wish{.forward = models::testing::tiny_vgg(3)};
  std::vector<float> expected;
  {
    Machine machine(wish, oracle);
    expected = gradients_of(machine);
  }
  for (const int epilogue : {CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BGRADB}) {
    wish.script = [=](Recorder& recorder) { recorder.refused_epilogue = epilogue; };
    Machine machine(wish, oracle);
    const Difference difference(gradients_of(machine), expected);
    EXPECT_GT(difference.norm, 0);
    EXPECT_LE(difference.error, 1e-5 * difference.norm) << epilogue;
    EXPECT_NE(joined(machine.step->notes()).find("CUBLAS_STATUS_NOT_SUPPORTED): a kernel of ours follows"),
              std::string::npos);
  }
}

TEST(Fallback, AProductThatNothingRunsIsAnErrorThatSaysAll) {
  ServesAll oracle;
  Wish wish{.forward = models::testing::tiny_vgg(3)};
  wish.script = [](Recorder& recorder) { recorder.refuses_product = [](int, int) { return true; }; };
  models::testing::expect_error(Errc::kUnsupported,
                                {"cuBLASLt 13.1.0 has no algorithm for linear+bias", "3x",
                                 " in fp32 (cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED"},
                                [&] { const Machine machine(wish, oracle); });
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::fallback_test
