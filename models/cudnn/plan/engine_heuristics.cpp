#include "models/cudnn/plan/engine_heuristics.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "engine/base/error.h"

namespace hvd::models::cudnn {
namespace {

// cuDNN's lists have at most about forty engines, and a plan keeps eight candidates (PlanOptions).
constexpr std::int64_t kFirstResults = 8, kMaxResults = 64;
constexpr std::int64_t kMaxNotes = 16;
constexpr std::int64_t kMaxKnobs = 32;

std::vector<Descriptor> descriptors(const Library& library, cudnnBackendDescriptorType_t type, std::int64_t count) {
  std::vector<Descriptor> list;
  for (std::int64_t i = 0; i < count; ++i) list.emplace_back(library, type);
  return list;
}

// Fills `list` from an attribute that is an array of descriptors; returns how many were filled.
std::int64_t get_descriptors(const Descriptor& from, cudnnBackendAttributeName_t name, std::vector<Descriptor>& list) {
  std::vector<cudnnBackendDescriptor_t> handles;
  handles.reserve(list.size());
  for (const Descriptor& descriptor : list) handles.push_back(descriptor.get());
  const std::int64_t count =
      from.get(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(handles.size()), handles.data());
  return std::min(count, static_cast<std::int64_t>(list.size()));
}

template <class Note>
std::set<int> notes(const Descriptor& engine, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) {
  std::array<Note, kMaxNotes> values{};
  const std::int64_t count = std::min(engine.get(name, type, kMaxNotes, values.data()), kMaxNotes);
  return {values.begin(), values.begin() + count};
}

std::vector<Knob> knobs(const Library& library, const Descriptor& config) {
  std::vector<Descriptor> list = descriptors(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMaxKnobs);
  const std::int64_t count = get_descriptors(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, list);
  std::vector<Knob> result;
  for (std::int64_t i = 0; i < count; ++i) {
    const Descriptor& choice = list[static_cast<std::size_t>(i)];
    cudnnBackendKnobType_t type{};
    choice.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    result.push_back({.type = static_cast<int>(type), .value = choice.get_int64(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)});
  }
  std::sort(result.begin(), result.end(), [](const Knob& a, const Knob& b) { return a.type < b.type; });
  return result;
}

// Reads the engine, knobs and notes of `config`. Throws if cuDNN cannot build a plan from `config`.
EngineChoice choice_of(const Library& library, const Target& target, const Descriptor& config) {
  std::vector<Descriptor> engines = descriptors(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  get_descriptors(config, CUDNN_ATTR_ENGINECFG_ENGINE, engines);
  const Descriptor& engine = engines[0];
  const auto numerical =
      notes<cudnnBackendNumericalNote_t>(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE);
  const auto behaviour =
      notes<cudnnBackendBehaviorNote_t>(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE);
  EngineChoice choice{.engine = engine.get_int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX),
                      .knobs = knobs(library, config),
                      .tensor_cores = numerical.contains(CUDNN_NUMERICAL_NOTE_TENSOR_CORE),
                      .rounds_inputs = numerical.contains(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS),
                      .sums_in_16_bits = numerical.contains(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION),
                      .nondeterministic = numerical.contains(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC),
                      .compiled_at_run_time = behaviour.contains(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)};
  if (choice.compiled_at_run_time) {
    choice.workspace_bytes = promised_workspace(config);
    return choice;
  }
  Descriptor plan(library, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  target.aim_plan(plan);
  plan.finalize("plan");
  choice.workspace_bytes = static_cast<std::size_t>(plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
  choice.finalised = true;
  return choice;
}

cudnnBackendHeurMode_t mode_of(HeuristicsMode mode) {
  switch (mode) {
    case HeuristicsMode::kA: return CUDNN_HEUR_MODE_A;
    case HeuristicsMode::kB: return CUDNN_HEUR_MODE_B;
    case HeuristicsMode::kFallback: break;
  }
  return CUDNN_HEUR_MODE_FALLBACK;
}

}  // namespace

std::size_t promised_workspace(const Descriptor& config) {
  try {
    return static_cast<std::size_t>(config.get_int64(kAttrConfigWorkspace));
  } catch (const Error&) {
    return 0;
  }
}

EngineList::EngineList(const Library& library, const Target& target, const Program& program, const Group& group,
                       HeuristicsMode mode)
    : library_(library), target_(target) {
  try {
    graph_.emplace(library, program, group, target.handle());
    const cudnnBackendHeurMode_t wanted = mode_of(mode);
    heuristics_.emplace(library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics_->set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_->get());
    heuristics_->set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &wanted);
    target.aim_heuristics(*heuristics_);
    heuristics_->finalize("heuristics");
    fetch(kFirstResults);
  } catch (const Error& error) {
    whole_ = true;
    why_ = error.what();
  }
}

// Asks cuDNN for a new list of at most `most` engines, which replaces the list in configs_.
void EngineList::fetch(std::int64_t most) {
  std::vector<Descriptor> configs = descriptors(library_, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, most);
  const std::int64_t count = get_descriptors(*heuristics_, CUDNN_ATTR_ENGINEHEUR_RESULTS, configs);
  configs.erase(configs.begin() + count, configs.end());
  configs_ = std::move(configs);
  whole_ = count < most || most == kMaxResults;
}

// Fetches the list of up to kMaxResults engines and examines it from its start, because cuDNN does not promise that a
// longer list begins like a shorter list. look_at_next() skips engines that are already known.
void EngineList::fetch_whole() {
  try {
    fetch(kMaxResults);
    looked_at_ = 0;
  } catch (const Error& error) {
    whole_ = true;
    why_ = error.what();
  }
}

const EngineChoice* EngineList::at(std::size_t i) {
  while (i >= choices_.size()) {
    if (looked_at_ < configs_.size()) {
      look_at_next();
    } else if (!whole_) {
      fetch_whole();
    } else {
      return nullptr;
    }
  }
  return &choices_[i];
}

void EngineList::look_at_next() {
  try {
    EngineChoice choice = choice_of(library_, target_, configs_[looked_at_++]);
    const bool known = std::any_of(choices_.begin(), choices_.end(), [&](const EngineChoice& other) {
      return other.engine == choice.engine && other.knobs == choice.knobs;
    });
    if (!known) choices_.push_back(std::move(choice));
  } catch (const Error& error) {
    why_ = error.what();
  }
}

EngineFilter filter_of(const PlanOptions& options) {
  return {.compute = options.compute,
          .deterministic = options.deterministic,
          .workspace_cap_bytes = options.workspace_cap_bytes};
}

std::string rejection(const EngineChoice& choice, const EngineFilter& filter) {
  if (filter.compute == ComputeType::kFp32 && (choice.tensor_cores || choice.rounds_inputs)) {
    return "only with rounded inputs";
  }
  if (choice.sums_in_16_bits) return "only with 16-bit sums";
  if (filter.deterministic && choice.nondeterministic) return "only nondeterministic";
  if (choice.workspace_bytes > filter.workspace_cap_bytes) {
    return "only with a workspace above the cap of " + std::to_string(filter.workspace_cap_bytes) + " bytes";
  }
  return {};
}

}  // namespace hvd::models::cudnn
