#include "models/cudnn/engine_room.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/cudnn/engines.h"

namespace hvd::models::cudnn {
namespace {

const Group& first_group(const Plan& plan, std::size_t engine) {
  const auto found = std::find(plan.engine_of.begin(), plan.engine_of.end(), static_cast<int>(engine));
  HVD_ASSERT(found != plan.engine_of.end());
  return plan.program.groups[static_cast<std::size_t>(found - plan.engine_of.begin())];
}

EngineFilter filter_of(const PlanOptions& options) {
  return {.compute = options.compute,
          .deterministic = options.deterministic,
          .workspace_cap_bytes = options.workspace_cap_bytes};
}

}  // namespace

EngineRoom::EngineRoom(gpu::Runtime& runtime, const Backends& backends)
    : runtime_(runtime), kernels_(backends.kernels), handle_(backends.cudnn), linear_(backends.cublaslt) {}

void EngineRoom::finalize(Plan& plan, bool all) {
  const EngineFilter filter = filter_of(plan.options);
  const Target target(handle_.get());
  finalized_.clear();
  plan.workspace_bytes = 0;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    EnginePlan& engine = plan.engines[e];
    const Group& group = first_group(plan, e);
    std::vector<Finalized> plans(engine.choices.size());
    std::string why;
    const auto try_one = [&](std::size_t i) {
      EngineChoice& choice = engine.choices[i];
      try {
        auto made = std::make_shared<const ExecutionPlan>(handle_.library(), target, plan.program, group, choice);
        choice.workspace_bytes = made->workspace_bytes();
        choice.finalised = true;
        why = rejection(choice, filter);
        if (why.empty()) plans[i] = std::move(made);
      } catch (const Error& error) {
        why = error.what();
      }
      if (!plans[i]) notes_.push_back(operations_text(group) + ": engine " + choice.text() + " does not run: " + why);
      return plans[i] != nullptr;
    };
    bool found = try_one(engine.chosen);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (i == engine.chosen || (found && !all)) continue;
      if (!try_one(i) || found) continue;
      engine.chosen = i;
      found = true;
    }
    if (!found) {
      throw Error(Errc::kUnsupported, plan.program.model + ": " + runtime_.label() + ": cuDNN " + plan.cudnn +
                                          " runs none of its engines for " + engine.signature + " (" + why +
                                          "); try a lower fusion level or another --dtype");
    }
    for (const Finalized& made : plans) {
      if (made) plan.workspace_bytes = std::max(plan.workspace_bytes, made->workspace_bytes());
    }
    finalized_.push_back(std::move(plans));
  }
}

std::size_t EngineRoom::workspace_bytes(const Plan& plan) const {
  std::size_t bytes = plan.workspace_bytes;
  for (const Group& group : plan.program.groups) {
    if (group.engine == Engine::kCublasLt) bytes = std::max(bytes, kLinearWorkspaceBytes);
    // A product's sums as well, which are ours if the library has no epilogue for them.
    if (group.engine != Engine::kCudnn) bytes = std::max(bytes, own_workspace(plan.program, group, kernels_));
  }
  return bytes;
}

std::vector<Launch> EngineRoom::bind(const Plan& plan, const Addresses& addresses, const OwnContext& context) {
  std::vector<Launch> launches;
  for (std::size_t i = 0; i < plan.program.groups.size(); ++i) {
    const Group& group = plan.program.groups[i];
    switch (group.engine) {
      case Engine::kCudnn: {
        const auto engine = static_cast<std::size_t>(plan.engine_of[i]);
        launches.push_back(
            cudnn_launch(handle_, finalized_.at(engine).at(plan.engines[engine].chosen), addresses, group));
        break;
      }
      case Engine::kCublasLt:
        launches.push_back(linear_.launch(addresses, group, plan.options.compute, kernels_, notes_));
        break;
      case Engine::kOwn: launches.push_back(own_launch(addresses, group, context)); break;
    }
  }
  return launches;
}

// The fastest of several short rounds: what disturbs a measurement only ever makes it longer.
double EngineRoom::microseconds(const Launch& launch, gpu::StreamView stream) {
  constexpr int kWarmUps = 2, kRounds = 3, kLaunches = 5;
  const gpu::Event begin = runtime_.make_event(gpu::Timing::kOn);
  const gpu::Event end = runtime_.make_event(gpu::Timing::kOn);
  auto* const native = static_cast<kernels::Stream>(stream.native);
  for (int i = 0; i < kWarmUps; ++i) launch(native);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    runtime_.record(begin, stream);
    for (int i = 0; i < kLaunches; ++i) launch(native);
    runtime_.record(end, stream);
    runtime_.synchronize(end.view(), Deadline::after(std::chrono::seconds(60)), "timing an engine of cuDNN");
    const double each = std::chrono::duration<double, std::micro>(runtime_.elapsed(begin, end)).count() / kLaunches;
    best = round == 0 ? each : std::min(best, each);
  }
  return best;
}

std::vector<Winner> EngineRoom::tune(Plan& plan, const Addresses& addresses, gpu::StreamView stream) {
  std::vector<Winner> winners;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    EnginePlan& engine = plan.engines[e];
    Winner winner{.signature = signature_hash(engine.signature)};
    for (std::size_t i = 0; i < engine.choices.size(); ++i) {
      const Finalized& candidate = finalized_.at(e).at(i);
      if (!candidate) continue;
      const double time = microseconds(cudnn_launch(handle_, candidate, addresses, first_group(plan, e)), stream);
      if (winner.choice.engine >= 0 && time >= winner.microseconds) continue;
      winner.choice = engine.choices[i];
      winner.microseconds = time;
      engine.chosen = i;
    }
    winners.push_back(std::move(winner));
  }
  return winners;
}

void EngineRoom::keep_chosen(Plan& plan) {
  plan.workspace_bytes = 0;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    EnginePlan& engine = plan.engines[e];
    std::vector<Finalized>& plans = finalized_.at(e);
    if (!plans[engine.chosen]) {
      notes_.push_back(engine.signature + ": engine " + engine.choices[engine.chosen].text() + " does not run here");
      const auto runs = std::find_if(plans.begin(), plans.end(), [](const Finalized& each) { return each != nullptr; });
      HVD_ASSERT(runs != plans.end());  // or finalize() would have refused the plan
      engine.chosen = static_cast<std::size_t>(runs - plans.begin());
    }
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (i != engine.chosen) plans[i] = nullptr;
    }
    plan.workspace_bytes = std::max(plan.workspace_bytes, plans[engine.chosen]->workspace_bytes());
  }
}

}  // namespace hvd::models::cudnn
