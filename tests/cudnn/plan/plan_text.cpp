#include "tests/cudnn/plan/plan_text.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <variant>

namespace hvd::models::cudnn::testing {
namespace {

std::string_view arena(Storage storage) {
  switch (storage) {
    case Storage::kImages: return "images";
    case Storage::kLabels: return "labels";
    case Storage::kParameter: return "weights";
    case Storage::kPaddedWeight: return "padded";
    case Storage::kState: return "state";
    case Storage::kGradient: return "gradients";
    case Storage::kScratch: break;
  }
  return "scratch";
}

std::string place(const Plan& plan, ValueId id) {
  const std::size_t offset = plan.memory.offsets[static_cast<std::size_t>(id)];
  if (offset == kNoOffset) return " -";  // the value stays inside its group and has no place
  return " " + std::string(arena(plan.program.value(id).storage)) + "+" + std::to_string(offset);
}

// Returns the arguments of the launch that are missing in signature().
std::string argument(const Attr& attr) {
  std::ostringstream text;
  if (const auto* norm = std::get_if<BatchNormAttr>(&attr)) text << " e" << norm->epsilon << " m" << norm->momentum;
  if (const auto* dropout = std::get_if<DropoutAttr>(&attr)) text << " r" << dropout->rate << " s" << dropout->stream;
  if (const auto* loss = std::get_if<LossAttr>(&attr)) text << " w" << loss->weight;
  return std::move(text).str();
}

std::string group_line(const Graph& graph, const Plan& plan, std::size_t i) {
  const Group& group = plan.program.groups[i];
  std::string line =
      "group " + std::to_string(i) + " for " + nodes_text(graph, group) + ": " + signature(plan.program, group) + " |";
  for (const Operation& operation : group.operations) {
    for (const ValueId id : operation.inputs) line += place(plan, id);
    line += " >";
    for (const ValueId id : operation.outputs) line += place(plan, id);
    line += argument(operation.attr) + (operation.again ? " again;" : ";");
  }
  if (plan.engine_of[i] >= 0) line += " engine " + std::to_string(plan.engine_of[i]);
  return line;
}

std::string choice_line(const EngineChoice& choice) {
  std::string line = choice.text() + " workspace " + std::to_string(choice.workspace_bytes);
  if (choice.tensor_cores) line += ", tensor cores";
  if (choice.rounds_inputs) line += ", rounds inputs";
  if (choice.nondeterministic) line += ", nondeterministic";
  if (choice.compiled_at_run_time) line += ", compiled at run time";
  return line;
}

}  // namespace

std::vector<std::string> plan_lines(const Graph& graph, const Plan& plan) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < plan.program.groups.size(); ++i) lines.push_back(group_line(graph, plan, i));
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    const EngineCandidates& engine = plan.engines[e];
    lines.push_back("engine " + std::to_string(e) + " for " + std::to_string(engine.groups) + " groups, chosen " +
                    std::to_string(engine.chosen) + ": " + engine.signature);
    for (const EngineChoice& choice : engine.choices) {
      lines.push_back("candidate for engine " + std::to_string(e) + ": " + choice_line(choice));
    }
  }
  for (const ArenaSlot& slot : plan.memory.slots) {
    lines.push_back("slot " + slot.name + ": " + std::to_string(slot.offset) + " " + std::to_string(slot.count) + " " +
                    slot.shape.text());
  }
  const std::vector<std::size_t> ready = gradients_ready(graph, plan.program);
  for (std::size_t i = 0; i < ready.size(); ++i) {
    if (ready[i] == (i > 0 ? ready[i - 1] : 0)) continue;
    lines.push_back("gradients ready after group " + std::to_string(i) + ": " + std::to_string(ready[i]));
  }
  for (const Fallback& fallback : plan.program.fallbacks) {
    lines.push_back("not served at " + graph.node(fallback.node).name + ": " + fallback.wanted);
  }
  return lines;
}

std::string plan_figures(const Plan& plan) {
  const auto groups_of = [&](Provider provider) {
    return std::count_if(plan.program.groups.begin(), plan.program.groups.end(),
                         [&](const Group& group) { return group.provider == provider; });
  };
  std::size_t candidates = 0;
  for (const EngineCandidates& engine : plan.engines) candidates += engine.choices.size();
  const MemoryLayout& memory = plan.memory;
  std::ostringstream text;
  text << "groups " << plan.program.groups.size() << " cudnn " << groups_of(Provider::kCudnn) << " cublaslt "
       << groups_of(Provider::kCublasLt) << " own " << groups_of(Provider::kOwn) << " engines " << plan.engines.size()
       << " candidates " << candidates << " weights " << memory.weights << " master " << memory.master << " gradients "
       << memory.gradients << " momentum " << memory.momentum << " state " << memory.state << " images "
       << memory.images << " labels " << memory.labels << " padded " << memory.padded_weights << " scratch "
       << memory.scratch << " scratch-least " << memory.scratch_lower_bound << " scratch-all "
       << memory.scratch_without_reuse << " workspace " << plan.workspace_bytes;
  return std::move(text).str();
}

}  // namespace hvd::models::cudnn::testing
