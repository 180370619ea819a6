// Tests what a step does if work that the plan relies on fails on the device: engines that fail when finalised or when
// first launched, products that do not run, memory that is too small to time engines. Uses the fakes of machine.h.
// Wish::script says what the fakes refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/cudnn/machine.h"
#include "tests/cudnn/networks.h"
#include "tests/cudnn/oracles.h"
#include "tests/cudnn/program_check.h"

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

/// Returns the number of cuDNN groups with an operation of `type`.
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

// Several threads that finalise plans give the same engines and the same refusals as one thread.
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
    EXPECT_EQ(together.plan.hash(), alone.plan.hash());
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
  for (const Case& each : {Case{"cudnnBackendFinalize(plan): NOT_SUPPORTED", false, &with_statistics,
                                OpType::kStatistics, "conv+statistics"},
                           Case{"EXECUTION_FAILED", true, &with_sums, OpType::kNormBackwardWeights,
                                "dgrad+norm_apply+drelu+dnorm_weights"}}) {
    SCOPED_TRACE(each.wanted);
    Wish wish{.forward = tiny_resnet(4)};
    {
      const Machine untouched(wish, oracle);
      EXPECT_GT(groups_with(untouched.plan.program, each.gone), 0U);
    }
    wish.script = [&](Recorder& recorder) {
      (each.when_launched ? recorder.refuses_launch : recorder.refuses_plan) = each.refuses;
    };
    {
      const Machine machine(wish, oracle);
      EXPECT_EQ(groups_with(machine.plan.program, each.gone), 0U);
      EXPECT_GT(machine.plans, 1);
      const Graph graph = differentiate(wish.forward);
      EXPECT_EQ(violations(graph, machine.plan.program), std::vector<std::string>());
      const auto& list = machine.plan.program.fallbacks;
      const auto found = std::find_if(list.begin(), list.end(),
                                      [&](const Fallback& fallback) { return fallback.wanted == each.wanted; });
      ASSERT_NE(found, list.end());
      EXPECT_EQ(found->level, 2);
      EXPECT_NE(found->why.find(each.why), std::string::npos) << found->why;
      const std::string notes = joined(machine.step->notes());
      EXPECT_NE(notes.find(std::string("level 2, ") + each.wanted + ": "), std::string::npos) << notes;
      // Memory is laid out for the program that runs, not for the refused one.
      const MemoryLayout layout = lay_out(graph, machine.plan.program, wish.plan.compute, wish.plan.gradient);
      EXPECT_EQ(layout.scratch, machine.plan.memory.scratch);
      EXPECT_EQ(layout.offsets, machine.plan.memory.offsets);
    }
    compare_with_reference(wish, oracle);
  }
}

// Only the groups with the refused signature fall back. The other groups keep their level.
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

// The engines of level 2 fail when finalised. The engines of level 1 fail when launched.
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

// After a fault of the GPU itself nothing runs. The error names the engine, and no other engine is tried.
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

// ---- Ranks ----

/// Returns the report of another rank with an equal GPU, on which no engine of `signature` runs.
std::string report_with(const std::string& mine, const std::string& signature) {
  std::string text = mine;
  for (const char* engine : {"1[2=5]", "2[]"}) {
    text += "failed " + signature + "\t" + engine + "\tas another rank found\n";
  }
  return text;
}

TEST(Fallback, WhatOneRankFindsAllRanksLeaveOut) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(4)};
  std::string signature_of_one;
  {
    const Machine alone(wish, oracle);
    for (const EnginePlan& engine : alone.plan.engines) {
      if (engine.signature.find("statistics") != std::string::npos) signature_of_one = engine.signature;
    }
  }
  ASSERT_NE(signature_of_one, "");
  int calls = 0;
  wish.executor.share = [&](const std::string& mine) {
    return std::vector<std::string>{mine, ++calls == 1 ? report_with(mine, signature_of_one) : mine};
  };
  const Machine machine(wish, oracle);
  EXPECT_EQ(calls, 2) << "once per plan";
  for (const EnginePlan& engine : machine.plan.engines) EXPECT_NE(engine.signature, signature_of_one);
  EXPECT_NE(joined(machine.step->notes()).find("level 2, conv+statistics: as another rank found"), std::string::npos)
      << joined(machine.step->notes());
}

TEST(Fallback, ARankOnAnotherGpuPlansForItself) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(4)};
  int calls = 0;
  wish.executor.share = [&](const std::string& mine) {
    std::string other = mine;
    other.replace(other.find("fake"), 4, "else");
    other.resize(other.rfind("group "));  // without the last group, so that the plan is another one
    return std::vector<std::string>{mine, ++calls == 1 ? report_with(other, "cudnn; conv") : other};
  };
  const Machine machine(wish, oracle);
  EXPECT_EQ(calls, 2) << "all plan again together";
  EXPECT_EQ(joined(machine.step->notes()), "");
}

TEST(Fallback, EqualGpusThatPlanDifferentlyAreNamed) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(4)};
  std::size_t longest = 0;
  wish.executor.share = [&](const std::string& mine) {
    std::string other = mine;
    const std::size_t first = other.find("group ");
    const std::size_t second = other.find("group ", first + 1);
    const std::size_t at = second == std::string::npos ? first : second;  // call 1 has one hash, call 2 all groups
    if (second == std::string::npos) longest = std::max(longest, mine.size());
    other.replace(at, other.find('\n', at) - at, "group cudnn; conv of something else");
    return std::vector<std::string>{mine, mine, other};
  };
  models::testing::expect_error(Errc::kMismatch,
                                {"rank 0 and rank 2 have equal GPUs (fake, cuDNN 9.19.0) and plan different steps: "
                                 "launch 1 is \"",
                                 "on the first and \"cudnn; conv of something else\" on the second; give both"},
                                [&] { const Machine machine(wish, oracle); });
  EXPECT_GT(longest, 0U);
  EXPECT_LT(longest, 100U);  // bytes that every rank sends to all others at every start
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
  const auto too_wide = [](Recorder& recorder) { recorder.product_workspace = kLinearWorkspaceBytes + 1; };
  for (const Case& each :
       {Case{refuse_first, "1 of 3 algorithms do not run: cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED", "algorithm 1"},
        Case{refuse_epilogues, "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED): a kernel of ours follows",
             "epilogue 1 algorithm 0"},
        Case{too_wide, "", "algorithm 1"}}) {
    SCOPED_TRACE(each.runs);
    Wish wish = whole;
    wish.script = each.script;
    Machine machine(wish, oracle);
    const Difference found(gradients_of(machine), expected);
    EXPECT_GT(found.norm, 0);
    EXPECT_LE(found.error, 1e-5 * found.norm);
    EXPECT_NE(joined(machine.step->notes()).find(each.note), std::string::npos) << joined(machine.step->notes());
    for (const Call& call : machine.recorder.calls) {
      if (!call.what.starts_with("cublaslt")) continue;
      EXPECT_TRUE(call.what.ends_with(each.runs)) << call.what;
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
    const Difference found(gradients_of(machine), expected);
    EXPECT_GT(found.norm, 0);
    EXPECT_LE(found.error, 1e-5 * found.norm) << epilogue;
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

// ---- Timing ----

TEST(Fallback, WithoutMemoryToTimeEnginesTheFirstOnesRun) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  std::string engines;
  double loss = 0;
  {
    Machine machine(wish, oracle);
    const gpu::MemoryState memory = machine.gpu.memory();
    wish.device_bytes = memory.total_bytes - memory.free_bytes + (std::size_t{1} << 20);
    engines = machine.step->engines();
    loss = machine.step->forward_backward(machine.batch(), machine.sink);
  }
  const std::filesystem::path folder = own_folder("hvd_untimed");
  std::filesystem::remove_all(folder);
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  const auto script = [](Recorder& recorder) { recorder.second_workspace = std::size_t{64} << 20; };
  {
    Wish roomy = wish;
    roomy.device_bytes = std::size_t{256} << 20;
    roomy.executor.winners_folder.clear();
    roomy.script = script;
    const Machine machine(roomy, oracle);  // with enough memory, the engines are timed
    const std::string notes = joined(machine.step->notes());
    EXPECT_TRUE(notes.starts_with("engines: ") && notes.ends_with(" s to time them\n")) << notes;
  }
  wish.script = script;
  int agreed = 0;
  wish.executor.agree = [&](const std::string& mine) {
    ++agreed;
    return mine;
  };
  Machine machine(wish, oracle);
  const std::string notes = joined(machine.step->notes());
  EXPECT_NE(notes.find("engines were not timed, for want of memory (GPU 0 (fake): batch 2 needs "), std::string::npos)
      << notes;
  EXPECT_EQ(machine.step->engines(), engines);
  EXPECT_EQ(machine.step->forward_backward(machine.batch(), machine.sink), loss);
  EXPECT_EQ(agreed, 2) << "the other ranks wait for it";
  EXPECT_FALSE(std::filesystem::exists(folder)) << "nothing was measured";
}

TEST(Fallback, WinnersOfAnEarlierRunThatDoNotFitGiveWay) {
  ServesAll oracle;
  const std::filesystem::path folder = own_folder("hvd_wide_winners");
  std::filesystem::remove_all(folder);
  Wish wish{.forward = tiny_resnet(2)};
  wish.script = [](Recorder& recorder) { recorder.second_workspace = std::size_t{64} << 20; };
  std::string engines;
  {
    Wish untimed = wish;
    Machine machine(untimed, oracle);
    const gpu::MemoryState memory = machine.gpu.memory();
    wish.device_bytes = memory.total_bytes - memory.free_bytes + (std::size_t{1} << 20);
    engines = machine.step->engines();
    std::vector<Winner> wide;
    for (const EnginePlan& engine : machine.plan.engines) {
      wide.push_back({.signature = signature_hash(engine.signature), .choice = {.engine = 2}, .microseconds = 1});
    }
    std::filesystem::create_directories(folder);
    save_winners((folder / winners_file_name(machine.plan)).string(), machine.plan, {.list = wide, .why_not = {}});
  }
  wish.executor.winners_folder = folder.string();
  const Machine machine(wish, oracle);
  const std::string notes = joined(machine.step->notes());
  EXPECT_NE(notes.find("engines that were the fastest in an earlier run are not used, for want of memory (GPU 0 "),
            std::string::npos)
      << notes;
  EXPECT_EQ(machine.step->engines(), engines);
  std::filesystem::remove_all(folder);
}

TEST(Fallback, ACandidateThatFailsWhenItIsTimedIsLeftOut) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  wish.executor.tune = true;
  wish.script = [](Recorder& recorder) {
    recorder.refuses_launch = [](std::int64_t engine, const Operations&) { return engine == 2; };
    recorder.refuses_product = [](int algorithm, int) { return algorithm == 2; };
  };
  Machine machine(wish, oracle);
  EXPECT_EQ(machine.step->engines().find(" 2[]"), std::string::npos) << machine.step->engines();
  const std::string notes = joined(machine.step->notes());
  EXPECT_NE(notes.find("engine 2[] does not run: cudnnBackendExecute("), std::string::npos) << notes;
  machine.step->forward_backward(machine.batch(), machine.sink);
}

// The fake GPU's time is the number of launches, so all algorithms take equally long and the first would win. The
// answer of `agree` names another algorithm, which must run.
TEST(Fallback, ProductsRunTheAlgorithmThatWon) {
  ServesAll oracle;
  const std::filesystem::path folder = own_folder("hvd_products");
  std::filesystem::remove_all(folder);
  Wish wish{.forward = tiny_resnet(2)};
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  const std::string second = "lt:0000000000000002";
  wish.executor.agree = [&](const std::string& mine) {
    std::string text = mine;
    for (std::size_t at = 0; (at = text.find("lt:", at)) != std::string::npos; at += second.size()) {
      text.replace(at, second.size(), second);
    }
    return text;
  };
  const auto runs_second = [](Machine& machine) {
    machine.step->forward_backward(machine.batch(), machine.sink);
    const auto& calls = machine.recorder.calls;
    return std::all_of(calls.begin(), calls.end(), [](const Call& call) {
      return !call.what.starts_with("cublaslt") || call.what.ends_with("algorithm 2");
    });
  };
  std::string engines;
  {
    Machine machine(wish, oracle);
    EXPECT_TRUE(runs_second(machine));
    engines = machine.step->engines();
  }
  // A later run times nothing and uses the stored winners.
  wish.executor.tune = false;
  wish.executor.agree = {};
  Machine machine(wish, oracle);
  EXPECT_TRUE(runs_second(machine));
  EXPECT_EQ(machine.step->engines(), engines);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::fallback_test
