// The functions of plan.h that need no GPU library.
#include "models/cudnn/plan/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::models::cudnn {

std::string EngineChoice::text() const {
  std::string text = std::to_string(engine) + "[";
  for (const Knob& knob : knobs) {
    if (text.back() != '[') text += ",";
    text += std::to_string(knob.type) + "=" + std::to_string(knob.value);
  }
  return text + "]";
}

FusionOptions fusion_that_runs(const PlanOptions& options) {
  FusionOptions fusion = options.fusion;
  if (fusion.images == ImageLayout::kColumns && columns_failure(options.failed) != nullptr)
    fusion.images = ImageLayout::kPadded;
  return fusion;
}

LoweringOptions lowering_options(const PlanOptions& options) {
  return {.compute = options.compute, .gradient = options.gradient, .fusion = fusion_that_runs(options)};
}

// Refuses, in deterministic mode, groups that sum over the rows of a convolution's result within its launch. cuDNN does
// not mark any engine for such groups as nondeterministic. Yet on an H200 (cuDNN 9.14), two runs of a step gave
// different bits at level 2 in tf32, fp16 and bf16, which have such groups. Two runs gave equal bits in fp32, which has
// no such groups, and at level 1. It is unknown which engines for such groups are nondeterministic, so none is used.
std::string rejection(const Group& group, const PlanOptions& options) {
  if (!options.deterministic) return {};
  const bool convolution = holds(group, {OpType::kConv, OpType::kConvBackwardData, OpType::kConvBackwardWeights});
  const bool sums = holds(group, {OpType::kStatistics, OpType::kNormBackwardWeights});
  return convolution && sums ? "nondeterministic: sums over rows in a convolution's launch" : "";
}

const Group& first_group(const Plan& plan, std::size_t engine) {
  const auto found = std::find(plan.engine_of.begin(), plan.engine_of.end(), static_cast<int>(engine));
  HVD_ASSERT(found != plan.engine_of.end());
  return plan.program.groups[static_cast<std::size_t>(found - plan.engine_of.begin())];
}

Plan assemble(const Graph& graph, const PlanOptions& options, Program program,
              const std::function<std::vector<EngineChoice>(const Program&, const Group&)>& choices) {
  Plan plan;
  plan.options = options;
  plan.program = std::move(program);
  std::map<std::string, int> index;
  for (const Group& group : plan.program.groups) {
    if (group.provider != Provider::kCudnn) {
      plan.engine_of.push_back(-1);
      continue;
    }
    const std::string key = signature(plan.program, group);
    const auto [known, first] = index.emplace(key, static_cast<int>(plan.engines.size()));
    if (first) {
      plan.engines.push_back({.signature = key, .choices = choices(plan.program, group), .chosen = 0, .groups = 0});
      HVD_ASSERT(!plan.engines.back().choices.empty());  // lower() keeps only groups that have an engine
    }
    EngineCandidates& engine = plan.engines[static_cast<std::size_t>(known->second)];
    ++engine.groups;
    plan.engine_of.push_back(known->second);
    plan.workspace_bytes = std::max(plan.workspace_bytes, engine.choices[engine.chosen].workspace_bytes);
  }
  plan.memory = lay_out(graph, plan.program, options.compute, options.gradient);
  return plan;
}

std::vector<std::string> fallback_lines(const Graph& graph, const Program& program) {
  std::map<std::string, std::set<NodeId>> fallbacks;
  for (const Fallback& fallback : program.fallbacks) {
    fallbacks["level " + std::to_string(fallback.level) + ", " + fallback.wanted + ": " + fallback.why].insert(
        fallback.node);
  }
  std::vector<std::string> lines;
  for (const auto& [what, nodes] : fallbacks) {
    std::string line = "not served at ";
    if (nodes.size() > 1) line += std::to_string(nodes.size()) + " nodes (";
    line += graph.node(*nodes.begin()).name;
    if (nodes.size() > 1) line += ", ...)";
    lines.push_back(line.append(": ").append(what));
  }
  return lines;
}

}  // namespace hvd::models::cudnn
