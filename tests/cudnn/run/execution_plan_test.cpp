// Tests with the real cuDNN, without a GPU, that the executor can build execution plans from a Plan's engine numbers
// and knobs. Without cuDNN 9.8 the test is skipped with the reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "models/cudnn/plan/engine_heuristics.h"
#include "models/cudnn/run/cudnn_launch.h"
#include "models/graph/autodiff.h"
#include "models/zoo/zoo.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/plan/devices.h"

namespace hvd::models::cudnn::testing::execution_plan_test {
namespace {

TEST(Execution, EnginesAreBuiltAgainFromTheirNumbers) {
  if (const std::string reason = planner_unsupported_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const std::string h200 = device_properties("h200");
  const auto library = Library::load();
  const Target target(*library, h200);
  // Covers convolutions with their epilogues, forward and backward. Builds every engine that was compiled in advance.
  const Graph graph = differentiate(build_model({.model = "vgg16", .batch_size = 64}));
  const Plan plan = make_planner(h200)->plan(graph, {.fusion = reading(ImageLayout::kPadded, 1), .candidates = 64});
  std::size_t built = 0;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    const auto first = std::find(plan.engine_of.begin(), plan.engine_of.end(), static_cast<int>(e));
    const Group& group = plan.program.groups[static_cast<std::size_t>(first - plan.engine_of.begin())];
    for (const EngineChoice& choice : plan.engines[e].choices) {
      if (!choice.finalised) continue;
      const ExecutionPlan again(*library, target, plan.program, group, choice);
      EXPECT_EQ(again.workspace_bytes(), choice.workspace_bytes) << plan.engines[e].signature << " " << choice.text();
      EXPECT_EQ(promised_workspace(again.config()), choice.workspace_bytes) << choice.text();
      ++built;
    }
  }
  EXPECT_GT(built, plan.engines.size());
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::execution_plan_test
