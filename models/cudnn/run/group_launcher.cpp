#include "models/cudnn/run/group_launcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/cudnn/plan/engine_heuristics.h"

namespace hvd::models::cudnn {
namespace {

std::string key_of(const EngineCandidates& engine, const EngineChoice& choice) {
  return engine.signature + " " + choice.text();
}

kernels::Stream native(gpu::StreamView stream) { return static_cast<kernels::Stream>(stream.native); }

}  // namespace

GroupLauncher::GroupLauncher(gpu::GpuRuntime& runtime, const Backends& backends, int threads)
    : runtime_(runtime),
      threads_(threads),
      kernels_(backends.kernels),
      handle_(backends.cudnn),
      cublaslt_launcher_(backends.cublaslt) {}

GroupLauncher::Built GroupLauncher::build(const Plan& plan, Candidate candidate) const {
  const EngineChoice& choice = plan.engines[candidate.engine].choices[candidate.choice];
  try {
    return {.plan = std::make_shared<const ExecutionPlan>(handle_.library(), Target(handle_.get()), plan.program,
                                                          first_group(plan, candidate.engine), choice),
            .why = {},
            .fault = nullptr};
  } catch (const Error& error) {
    return {.plan = nullptr, .why = error.what(), .fault = nullptr};
  } catch (...) {
    return {.plan = nullptr, .why = {}, .fault = std::current_exception()};
  }
}

void GroupLauncher::build_ahead(const Plan& plan, const std::vector<Candidate>& candidates, EngineFailures& failures) {
  std::vector<Candidate> missing;
  std::set<std::string> keys;
  for (const Candidate candidate : candidates) {
    const EngineCandidates& engine = plan.engines[candidate.engine];
    const EngineChoice& choice = engine.choices[candidate.choice];
    const std::string key = key_of(engine, choice);
    if (finalized_.contains(key) || find_failure(failures, engine.signature, choice.text()) != nullptr) continue;
    if (keys.insert(key).second) missing.push_back(candidate);
  }
  std::vector<Built> built(missing.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < missing.size(); i = next++) built[i] = build(plan, missing[i]);
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t wanted = std::min(missing.size(), static_cast<std::size_t>(std::max(threads_, 1)));
    try {
      for (std::size_t t = 1; t < wanted; ++t) {
        helpers.emplace_back([&] {
          try {
            runtime_.make_current();
          } catch (const Error&) {
            return;  // the other threads do this thread's work
          }
          work();
        });
      }
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): the threads that did start do the work
    }
    work();
  }
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (built[i].fault) std::rethrow_exception(built[i].fault);
    const EngineCandidates& engine = plan.engines[missing[i].engine];
    const EngineChoice& choice = engine.choices[missing[i].choice];
    if (built[i].plan != nullptr) {
      finalized_[key_of(engine, choice)] = std::move(built[i].plan);
    } else {
      failures[engine.signature][choice.text()] = std::move(built[i].why);
    }
  }
}

GroupLauncher::Finalized GroupLauncher::finalized(Plan& plan, std::size_t e, std::size_t choice,
                                                  EngineFailures& failures) {
  EngineCandidates& engine = plan.engines[e];
  EngineChoice& engine_choice = engine.choices[choice];
  if (find_failure(failures, engine.signature, engine_choice.text()) != nullptr) return nullptr;
  build_ahead(plan, {{.engine = e, .choice = choice}}, failures);
  const auto made = finalized_.find(key_of(engine, engine_choice));
  if (made == finalized_.end()) return nullptr;
  engine_choice.workspace_bytes = made->second->workspace_bytes();
  engine_choice.finalised = true;
  std::string why = rejection(engine_choice, filter_of(plan.options));
  if (why.empty()) return made->second;
  failures[engine.signature][engine_choice.text()] = std::move(why);
  finalized_.erase(made);
  return nullptr;
}

bool GroupLauncher::finalize(Plan& plan, std::size_t e, EngineFailures& failures) {
  EngineCandidates& engine = plan.engines[e];
  Finalized made = finalized(plan, e, engine.chosen, failures);
  for (std::size_t i = 0; i < engine.choices.size() && !made; ++i) {
    made = finalized(plan, e, i, failures);
    if (made) engine.chosen = i;
  }
  if (made) plan.workspace_bytes = std::max(plan.workspace_bytes, made->workspace_bytes());
  return made != nullptr;
}

bool GroupLauncher::finalize(Plan& plan, EngineFailures& failures) {
  std::vector<Candidate> chosen;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    chosen.push_back({.engine = e, .choice = plan.engines[e].chosen});
  }
  build_ahead(plan, chosen, failures);
  bool all = true;
  plan.workspace_bytes = 0;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) all = finalize(plan, e, failures) && all;
  return all;
}

void GroupLauncher::finalize_all(Plan& plan, EngineFailures& failures) {
  std::vector<Candidate> all;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    for (std::size_t i = 0; i < plan.engines[e].choices.size(); ++i) all.push_back({.engine = e, .choice = i});
  }
  build_ahead(plan, all, failures);
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    for (std::size_t i = 0; i < plan.engines[e].choices.size(); ++i) {
      const Finalized made = finalized(plan, e, i, failures);
      if (made) plan.workspace_bytes = std::max(plan.workspace_bytes, made->workspace_bytes());
    }
  }
}

GroupLauncher::Finalized GroupLauncher::chosen(const Plan& plan, std::size_t e) const {
  const EngineCandidates& engine = plan.engines.at(e);
  const auto found = finalized_.find(key_of(engine, engine.choices.at(engine.chosen)));
  HVD_ASSERT(found != finalized_.end() && found->second != nullptr);
  return found->second;
}

std::size_t GroupLauncher::workspace_bytes(const Plan& plan) const {
  std::size_t bytes = plan.workspace_bytes;
  for (const Group& group : plan.program.groups) {
    if (group.provider == Provider::kCublasLt) bytes = std::max(bytes, kProductWorkspaceBytes);
    // Products may also need workspace for a kernel of ours, which computes a bias gradient if cuBLASLt has no epilogue
    // for it.
    if (group.provider != Provider::kCudnn) bytes = std::max(bytes, own_workspace(plan.program, group, kernels_));
  }
  return bytes;
}

void GroupLauncher::launch_once(const Plan& plan, std::size_t e, const Addresses& addresses, gpu::StreamView stream) {
  cudnn_launch(handle_, chosen(plan, e), addresses, first_group(plan, e))(native(stream));
}

bool GroupLauncher::try_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream,
                                 EngineFailures& failures) {
  bool all = true;
  for (const Group& group : plan.program.groups) {
    if (group.provider != Provider::kCublasLt) continue;
    try {
      cublaslt_launcher_.try_out(addresses, group, plan.options.compute, kernels_, native(stream));
    } catch (const Error& error) {
      if (error.code() != Errc::kUnsupported) throw;
      if (!reads_columns(plan.program, group))
        throw Error(error.code(), error.what() + std::string("; try another --dtype"));
      note_columns_failure(failures, error.what());
      all = false;
    }
  }
  return all;
}

std::vector<Launch> GroupLauncher::bind(const Plan& plan, const Addresses& addresses, const OwnContext& context) {
  std::vector<Launch> launches;
  for (std::size_t i = 0; i < plan.program.groups.size(); ++i) {
    const Group& group = plan.program.groups[i];
    switch (group.provider) {
      case Provider::kCudnn:
        launches.push_back(
            cudnn_launch(handle_, chosen(plan, static_cast<std::size_t>(plan.engine_of[i])), addresses, group));
        break;
      case Provider::kCublasLt:
        launches.push_back(cublaslt_launcher_.launch(addresses, group, plan.options.compute, kernels_));
        break;
      case Provider::kOwn: launches.push_back(own_launch(addresses, group, context)); break;
    }
  }
  return launches;
}

// Takes the fastest of several short rounds, because a disturbance can only make a round longer.
std::optional<double> GroupLauncher::microseconds(const Launch& launch, gpu::StreamView stream, std::string& why) {
  constexpr int kMoreWarmUps = 1, kRounds = 3, kLaunches = 5;
  const gpu::Event begin = runtime_.make_event(gpu::Timing::kOn);
  const gpu::Event end = runtime_.make_event(gpu::Timing::kOn);
  try {
    launch(native(stream));
  } catch (const Error& error) {
    why = error.what();
    return std::nullopt;
  }
  for (int i = 0; i < kMoreWarmUps; ++i) launch(native(stream));
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    runtime_.record(begin, stream);
    for (int i = 0; i < kLaunches; ++i) launch(native(stream));
    runtime_.record(end, stream);
    runtime_.synchronize(end.view(), Deadline::after(std::chrono::seconds(60)), "timing an engine");
    const double per_launch =
        std::chrono::duration<double, std::micro>(runtime_.elapsed(begin, end)).count() / kLaunches;
    best = round == 0 ? per_launch : std::min(best, per_launch);
  }
  return best;
}

std::vector<Winner> GroupLauncher::tune(const Plan& plan, const Addresses& addresses, gpu::StreamView stream,
                                        EngineFailures& failures) {
  std::vector<Winner> winners;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    const EngineCandidates& engine = plan.engines[e];
    Winner winner{.signature = signature_hash(engine.signature)};
    for (const EngineChoice& choice : engine.choices) {
      const auto candidate = finalized_.find(key_of(engine, choice));
      if (candidate == finalized_.end()) continue;
      const Launch launch = cudnn_launch(handle_, candidate->second, addresses, first_group(plan, e));
      std::string why;
      const std::optional<double> time = microseconds(launch, stream, why);
      if (!time) failures[engine.signature][choice.text()] = why;
      if (!time || (winner.choice.engine >= 0 && *time >= winner.microseconds)) continue;
      winner.choice = choice;
      winner.microseconds = *time;
    }
    if (winner.choice.engine >= 0) winners.push_back(std::move(winner));
  }
  std::vector<Winner> products = tune_products(plan, addresses, stream);
  winners.insert(winners.end(), products.begin(), products.end());
  return winners;
}

std::vector<Winner> GroupLauncher::tune_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream) {
  std::map<std::uint64_t, Winner> winners;
  for (const Group& group : plan.program.groups) {
    if (group.provider != Provider::kCublasLt) continue;
    const auto candidates = cublaslt_launcher_.candidates(addresses, group, plan.options.compute, kernels_);
    const auto [known, first] = winners.try_emplace(signature_hash(candidates.front().product));
    if (!first) continue;
    Winner& winner = known->second;
    winner.signature = known->first;
    for (const CublasLtLauncher::Candidate& candidate : candidates) {
      std::string why;
      const std::optional<double> time = microseconds(candidate.launch, stream, why);
      if (!time || (!winner.algorithm.empty() && *time >= winner.microseconds)) continue;
      winner.algorithm = candidate.algorithm;
      winner.microseconds = *time;
    }
  }
  std::vector<Winner> list;
  for (auto& [hash, winner] : winners) {
    if (!winner.algorithm.empty()) list.push_back(std::move(winner));
  }
  return list;
}

void GroupLauncher::choose_products(const std::vector<Winner>& winners) {
  for (const Winner& winner : winners) {
    if (!winner.algorithm.empty()) cublaslt_launcher_.choose(winner.signature, winner.algorithm);
  }
}

void GroupLauncher::keep_chosen(Plan& plan) {
  std::map<std::string, Finalized> kept;
  plan.workspace_bytes = 0;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) {
    const EngineCandidates& engine = plan.engines[e];
    const Finalized made = chosen(plan, e);
    kept[key_of(engine, engine.choices[engine.chosen])] = made;
    plan.workspace_bytes = std::max(plan.workspace_bytes, made->workspace_bytes());
  }
  finalized_ = std::move(kept);
  cublaslt_launcher_.forget_uses();  // bind() marks the products of `plan` as used again
}

}  // namespace hvd::models::cudnn
