#include "models/cudnn/run/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "models/cudnn/run/step_weights.h"

namespace hvd::models::cudnn {
namespace {

constexpr std::chrono::minutes kLongest(10);  // time limit of one wait; a longer wait means that the GPU hangs

std::string seconds_text(std::chrono::steady_clock::duration time) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(time).count());
}

}  // namespace

/// Device memory of a step, allocated while engines are tried or timed in it.
class PlanSearch::TrialMemory {
 public:
  TrialMemory(const PlanSearch& search, const Plan& plan)
      : runtime_(search.runtime_),
        plan_(plan),
        stream_(search.stream_),
        workspace_(search.launcher_.workspace_bytes(plan)),
        memory_(
            runtime_, plan.memory,
            memory_need(plan.memory, search.graph_.batch_size, workspace_, static_cast<int>(PinnedSlots::kSlots)),
            workspace_, [this](std::size_t bytes) { return gradients(bytes); }, stream_) {}
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;
  ~TrialMemory() { runtime_.drain(stream_); }

  void wait(std::string_view what) { runtime_.synchronize(stream_, Deadline::after(kLongest), what); }
  /// Makes the workspace at least `bytes` large.
  void widen(std::size_t bytes) {
    if (bytes <= workspace_) return;
    wait("what was tried in the smaller workspace");
    memory_.resize_workspace(bytes);
    workspace_ = bytes;
  }
  [[nodiscard]] gpu::StreamView stream() const { return stream_; }
  [[nodiscard]] kernels::Stream native() const { return static_cast<kernels::Stream>(stream_.native); }
  [[nodiscard]] const StepMemory& memory() const { return memory_; }
  [[nodiscard]] Addresses addresses() const {
    return {plan_.program, plan_.memory, storage(plan_.options.compute), memory_.arenas()};
  }

 private:
  std::span<std::byte> gradients(std::size_t bytes) {
    gradients_ = runtime_.allocate(bytes, "the gradients, to try engines");
    runtime_.fill(gradients_->bytes.data(), std::byte{0}, bytes, stream_);
    return gradients_->bytes;
  }

  gpu::GpuRuntime& runtime_;
  const Plan& plan_;
  gpu::StreamView stream_;
  gpu::DeviceMemory gradients_;
  std::size_t workspace_;
  StepMemory memory_;
};

PlanSearch::PlanSearch(const Graph& graph, const PlanSource& plan_source, const ExecutorOptions& options,
                       gpu::GpuRuntime& runtime, gpu::StreamView stream, const kernels::Table& kernels,
                       GroupLauncher& launcher)
    : graph_(graph),
      plan_source_(plan_source),
      options_(options),
      runtime_(runtime),
      stream_(stream),
      kernels_(kernels),
      launcher_(launcher) {}

Plan PlanSearch::run() {
  RunnablePlan candidate = runnable_plan(plan_source_.fusions.at(0));
  if (plan_source_.fusions.size() > 1) candidate = fastest(std::move(candidate));
  notes_ = std::move(candidate.notes);
  launcher_.choose_products(candidate.winners);  // a plan that was tried later may have chosen other algorithms
  launcher_.keep_chosen(candidate.plan);
  note_failures(candidate.plan, candidate.failures);
  return std::move(candidate.plan);
}

PlanSearch::RunnablePlan PlanSearch::runnable_plan(const FusionOptions& fusion) {
  RunnablePlan candidate{.plan = agreed_plan(fusion), .failures = failures_, .notes = {}, .winners = {}};
  candidate.winners = options_.tune ? tune(candidate.plan, candidate.failures) : in_use(candidate.plan, kept_);
  candidate.notes = notes_;
  return candidate;
}

// All ranks take the same branches. The kept fusion and the comparisons come from rank 0. If one rank has too little
// memory, all ranks throw.
PlanSearch::RunnablePlan PlanSearch::fastest(RunnablePlan best) {
  const auto& fusions = plan_source_.fusions;
  const auto if_it_fits = [&best](const FusionOptions& fusion, const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      if (error.code() != Errc::kOutOfMemory) throw;
      best.notes.push_back("not used, for want of memory: " + text(fusion));
    }
  };
  for (const FusionOptions& fusion : fusions) {
    if (text(fusion) != kept_fusion_) continue;
    if (fusion != fusions.front()) if_it_fits(fusion, [&] { best = runnable_plan(fusion); });
    return best;
  }
  if (!options_.tune) return best;
  const RunnablePlan first = best;
  const auto time = [](const RunnablePlan& candidate) {
    return fmt::format("{:.2f} ms with {}", *candidate.microseconds * 1e-3,
                       text(fusion_that_runs(candidate.plan.options)));
  };
  for (std::size_t i = 1; i < fusions.size(); ++i) {
    if_it_fits(fusions[i], [&] {
      RunnablePlan other = runnable_plan(fusions[i]);
      const bool faster = is_faster(other, best);
      RunnablePlan& winner = faster ? other : best;
      if (other.microseconds) winner.notes.push_back("a step takes " + time(best) + ", " + time(other));
      if (faster) best = std::move(other);
    });
  }
  if (!foreign_) keep_fusion(first, text(best.plan.options.fusion), best.notes);
  return best;
}

bool PlanSearch::is_faster(RunnablePlan& other, RunnablePlan& best) {
  constexpr const char *kFaster = "faster", *kNotFaster = "not faster";
  const std::vector<std::string> ranks = on_all_ranks(options_.exchange, [&] {
    if (program_hash(other.plan) == program_hash(best.plan)) return kNotFaster;  // the plans are equal
    for (RunnablePlan* candidate : {&best, &other}) {
      if (!candidate->microseconds) candidate->microseconds = step_microseconds(candidate->plan);
    }
    return *other.microseconds < *best.microseconds ? kFaster : kNotFaster;
  });
  if (ranks.front() != kFaster && ranks.front() != kNotFaster) throw_unreadable(0);
  return ranks.front() == kFaster;
}

Plan PlanSearch::new_plan(const FusionOptions& fusion) const {
  Plan plan = plan_source_.plan(graph_, fusion, failures_);
  plan.cublaslt = launcher_.cublaslt().version();
  return plan;
}

Plan PlanSearch::agreed_plan(const FusionOptions& fusion) {
  notes_.clear();
  Plan plan;
  Winners kept = of_rank_0(plan, [&] {
    plan = new_plan(fusion);
    return known_winners(plan);
  });
  foreign_ = kept.foreign;
  kept_ = std::move(kept.list);
  kept_fusion_ = std::move(kept.fusion);
  for (bool again = false;; again = true) {
    const std::vector<Report> reports = parse_reports(on_all_ranks(options_.exchange, [&] {
      if (again) plan = new_plan(fusion);
      make_runnable_here(plan);
      return report_text({machine_text(plan), hex64(program_hash(plan)), unreported_});
    }));
    unreported_.clear();
    for (const Report& report : reports) {
      if (report.machine == machine_text(plan)) merge_failures(failures_, report.failures);
    }
    if (agree(reports, again)) return plan;
  }
}

void PlanSearch::make_runnable_here(Plan& plan) {
  for (;; plan = new_plan(plan.options.fusion)) {
    measure_ = choose_winners(plan, kept_) > 0;
    launcher_.choose_products(kept_);
    EngineFailures new_failures;
    const bool runs = try_out(plan, new_failures);
    if (runs && new_failures.empty()) return;
    const bool is_new = merge_failures(failures_, new_failures);
    HVD_ASSERT(is_new);  // otherwise the next plan would be equal to this plan
    merge_failures(unreported_, new_failures);
  }
}

bool PlanSearch::try_out(Plan& plan, EngineFailures& new_failures) {
  if (!launcher_.finalize(plan, new_failures)) return false;  // the caller plans again, so memory is not allocated yet
  try {
    return launch_all(plan, new_failures);
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory || kept_.empty()) throw;
    notes_.push_back(std::string("engines that were the fastest in an earlier run are not used, for want of memory (") +
                     error.what() + ")");
  }
  for (EngineCandidates& engine : plan.engines) engine.chosen = 0;
  kept_.clear();
  return launcher_.finalize(plan, new_failures) && launch_all(plan, new_failures);
}

bool PlanSearch::launch_all(Plan& plan, EngineFailures& new_failures) {
  TrialMemory trial_memory(*this, plan);
  bool all = true;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) all = try_engine(plan, e, trial_memory, new_failures) && all;
  all = launcher_.try_products(plan, trial_memory.addresses(), trial_memory.stream(), new_failures) && all;
  trial_memory.wait("the products of cuBLASLt, tried once");
  return all;
}

bool PlanSearch::try_engine(Plan& plan, std::size_t e, TrialMemory& trial_memory, EngineFailures& new_failures) {
  EngineCandidates& engine = plan.engines[e];
  while (launcher_.finalize(plan, e, new_failures)) {
    const std::string choice = engine.choices[engine.chosen].text();
    trial_memory.widen(launcher_.workspace_bytes(plan));
    try {
      launcher_.launch_once(plan, e, trial_memory.addresses(), trial_memory.stream());
    } catch (const Error& error) {
      new_failures[engine.signature][choice] = error.what();
      continue;
    }
    const std::string what = "engine " + choice + " for " + engine.signature;
    try {
      trial_memory.wait(what);
    } catch (const Error& error) {  // the GPU is unusable now: no other engine would run either
      throw Error(error.code(), "trying " + what + ": " + error.what());
    }
    return true;
  }
  return false;
}

// ---- Timing ----

Winners PlanSearch::of_rank_0(const Plan& plan, const std::function<Winners()>& find) const {
  Winners mine;
  const std::vector<std::string> ranks = on_all_ranks(options_.exchange, [&] {
    mine = find();
    return options_.rank == 0 ? winners_text(plan, mine) : "";
  });
  Winners first = parse_winners(ranks.front(), plan);
  // With another GPU or cuDNN, this rank keeps its own engines. It still uses rank 0's fusion, so that all ranks take
  // the same branches.
  if (first.foreign) first.list = std::move(mine.list);
  if (!first.foreign && !first.why_not.empty()) throw_unreadable(0);
  return first;
}

Winners PlanSearch::known_winners(const Plan& plan) {
  Winners known;
  if (!options_.winners_folder.empty()) {
    if (first_file_.empty()) first_file_ = winners_path(plan);
    known = load_winners(winners_path(plan), plan);
    if (!known.why_not.empty() && std::filesystem::exists(winners_path(plan))) {
      notes_.push_back(winners_path(plan) + ": not used: " + known.why_not);
    }
    for (Winner& winner : borrow_winners(options_.winners_folder, plan, known.list)) {
      known.list.push_back(std::move(winner));
    }
  }
  for (const Winner& winner : timed_winners_) {  // winners from files take precedence
    const auto is = [&](const Winner& other) { return other.signature == winner.signature; };
    if (std::none_of(known.list.begin(), known.list.end(), is)) known.list.push_back(winner);
  }
  return known;
}

std::vector<Winner> PlanSearch::tune(Plan& plan, EngineFailures& new_failures) {
  EngineFailures refused;  // engines refused while they were timed, perhaps for want of memory; they may be chosen
  // `winners` is empty if rank 0 knew all winners already, or had too little memory to time engines.
  std::vector<Winner> winners = of_rank_0(plan, [&] {
                                  Winners mine;
                                  if (measure_) mine.list = timed_here(plan, new_failures, refused);
                                  return mine;
                                }).list;
  for (const auto& [signature, choices] : refused) {
    std::erase_if(winners, [&choices = choices, hash = signature_hash(signature)](const Winner& winner) {
      return winner.algorithm.empty() && winner.signature == hash && choices.contains(winner.choice.text());
    });
  }
  const Plan before = plan;
  if (!winners.empty() && !choose_if_they_fit(plan, winners, new_failures)) {
    notes_.emplace_back("engines that were the fastest on rank 0 are not used, for want of memory");
    plan = before;
    winners.clear();
  }
  if (winners.empty()) {
    launcher_.choose_products(kept_);
    const bool runs = launcher_.finalize(plan, new_failures);
    HVD_ASSERT(runs);  // these engines ran before timing
  }
  merge_failures(new_failures, refused);
  if (winners.empty()) return in_use(plan, kept_);
  if (measure_) {
    save(winners_path(plan), plan, {.list = winners, .fusion = kept_fusion_, .why_not = {}}, notes_);
    timed_winners_.insert(timed_winners_.end(), winners.begin(), winners.end());
  }
  return winners;
}

bool PlanSearch::choose_if_they_fit(Plan& plan, const std::vector<Winner>& winners, EngineFailures& new_failures) {
  choose_winners(plan, winners);
  launcher_.choose_products(winners);
  const bool runs = launcher_.finalize(plan, new_failures);
  HVD_ASSERT(runs);  // the engine that ran before timing is among the candidates
  const MemoryNeed need = memory_need(plan.memory, graph_.batch_size, launcher_.workspace_bytes(plan),
                                      static_cast<int>(PinnedSlots::kSlots));
  return need.total() <= runtime_.memory().free_bytes;
}

std::vector<Winner> PlanSearch::timed_here(Plan timed, EngineFailures& new_failures, EngineFailures& refused) {
  std::vector<Winner> winners;
  std::set<std::uint64_t> known;
  for (const Winner& winner : in_use(timed, kept_)) known.insert(winner.signature);
  for (EngineCandidates& engine : timed.engines) {
    if (!known.contains(signature_hash(engine.signature))) continue;
    engine.choices = {engine.choices[engine.chosen]};  // an earlier run has timed the other choices
    engine.chosen = 0;
  }
  try {
    const auto begin = std::chrono::steady_clock::now();
    launcher_.finalize_all(timed, new_failures);
    const auto compiled = std::chrono::steady_clock::now();
    winners = timed_in_trial_step(timed, refused);
    notes_.push_back("engines: " + seconds_text(compiled - begin) + " to compile all candidates, " +
                     seconds_text(std::chrono::steady_clock::now() - compiled) + " to time them");
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory) throw;
    notes_.push_back(std::string("engines were not timed, for want of memory (") + error.what() +
                     "): those that cuDNN and cuBLASLt name first are used, or winners of earlier runs");
  }
  return winners;
}

/// A step with initial weights and synthetic images, so that timed launches work on numbers like those in training.
class PlanSearch::TrialStep {
 public:
  TrialStep(const PlanSearch& search, const Plan& plan)
      : trial_memory(search, plan),
        weights_(search.graph_, plan, trial_memory.memory(), search.kernels_, search.runtime_, trial_memory.stream()) {
    weights_.upload_constants(first_loss_scale(plan.options.compute, search.options_.loss_scale));
    weights_.upload_initial(search.options_.seed);
    const Shape& shape = search.graph_.tensor(search.graph_.images).shape;
    const kernels::StepScalars* scalars = trial_memory.memory().scalars();
    search.kernels_.synthetic_batch({.seed = search.options_.seed,
                                     .image_elements = shape.count() / shape[0],
                                     .classes = search.graph_.classes,
                                     .samples = shape[0],
                                     .first_sample = &scalars->first_sample},
                                    trial_memory.addresses().matrix(images_of(search.graph_, plan.program)),
                                    reinterpret_cast<std::int32_t*>(trial_memory.memory().arenas().labels.data()),
                                    trial_memory.native());
    launches_ = search.launcher_.bind(plan, trial_memory.addresses(),
                                      {.graph = search.graph_,
                                       .kernels = search.kernels_,
                                       .seed = search.options_.seed,
                                       .scalars = scalars,
                                       .loss_scale = trial_memory.memory().loss_scale()});
  }
  void enqueue() const {
    for (const Launch& launch : launches_) launch(trial_memory.native());
  }

  TrialMemory trial_memory;

 private:
  StepWeights weights_;
  std::vector<Launch> launches_;
};

std::vector<Winner> PlanSearch::timed_in_trial_step(const Plan& plan, EngineFailures& new_failures) {
  TrialStep trial_step(*this, plan);
  trial_step.enqueue();
  std::vector<Winner> winners =
      launcher_.tune(plan, trial_step.trial_memory.addresses(), trial_step.trial_memory.stream(), new_failures);
  trial_step.trial_memory.wait("timing engines");
  return winners;
}

// Times the step in the form in which it will run: as a captured graph. Two steps are enqueued before the capture,
// because libraries load kernels at their first use.
double PlanSearch::step_microseconds(const Plan& plan) {
  constexpr int kEager = 2, kRounds = 5, kSteps = 4;
  TrialStep trial_step(*this, plan);
  for (int i = 0; i < kEager; ++i) trial_step.enqueue();
  trial_step.trial_memory.wait("steps to be timed");
  gpu::Capture capture(runtime_, trial_step.trial_memory.stream());
  trial_step.enqueue();
  const gpu::Graph graph = capture.finish();
  const gpu::Event begin = runtime_.make_event(gpu::Timing::kOn), end = runtime_.make_event(gpu::Timing::kOn);
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {  // round 0 warms up and does not count
    runtime_.record(begin, trial_step.trial_memory.stream());
    for (int i = 0; i < kSteps; ++i) runtime_.launch(graph, trial_step.trial_memory.stream());
    runtime_.record(end, trial_step.trial_memory.stream());
    trial_step.trial_memory.wait("timing a step");
    const double all = std::chrono::duration<double, std::micro>(runtime_.elapsed(begin, end)).count();
    if (round > 0) rounds.push_back(all / kSteps);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

// Keeps the winners already in the file, because the file may hold more winners than this run has used.
void PlanSearch::keep_fusion(const RunnablePlan& first, const std::string& fusion,
                             std::vector<std::string>& notes) const {
  if (options_.winners_folder.empty()) return;
  Winners file = load_winners(first_file_, first.plan);
  if (file.list.empty()) file.list = first.winners;
  file.fusion = fusion;
  save(first_file_, first.plan, file, notes);
}

void PlanSearch::save(const std::string& path, const Plan& plan, const Winners& winners,
                      std::vector<std::string>& notes) const {
  if (options_.winners_folder.empty()) return;
  try {
    save_winners(path, plan, winners);
  } catch (const Error& failure) {
    if (failure.code() != Errc::kIo) throw;
    notes.push_back(std::string("the fastest engines are not kept: ") + failure.what());
  }
}

std::string PlanSearch::winners_path(const Plan& plan) const {
  return (std::filesystem::path(options_.winners_folder) / winners_file_name(plan)).string();
}

// Does not note groups that fell back because of failures, because Program::fallbacks already lists these groups.
void PlanSearch::note_failures(const Plan& plan, const EngineFailures& failures) {
  const bool asked = plan.options.fusion.level > 0 && plan.options.fusion.images == ImageLayout::kColumns;
  if (const std::string* why = columns_failure(failures); asked && why != nullptr) {
    notes_.push_back("images are padded, not columns: " + *why);
  }
  for (std::size_t i = 0; i < plan.engines.size(); ++i) {
    const auto failed = failures.find(plan.engines[i].signature);
    if (failed == failures.end()) continue;
    for (const auto& [choice, why] : failed->second) {
      std::string& note = notes_.emplace_back(operations_text(first_group(plan, i)));
      note.append(": engine ").append(choice).append(" does not run: ").append(why);
    }
  }
}

}  // namespace hvd::models::cudnn
