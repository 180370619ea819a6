#include "models/cudnn/run/engine_selection.h"

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
class EngineSelection::TrialMemory {
 public:
  TrialMemory(const EngineSelection& of, const Plan& plan)
      : runtime_(of.runtime_),
        plan_(plan),
        stream_(of.stream_),
        workspace_(of.compiled_.workspace_bytes(plan)),
        memory_(
            runtime_, plan.memory,
            memory_need(plan.memory, of.graph_.batch_size, workspace_, static_cast<int>(PinnedSlots::kSlots)),
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

EngineSelection::EngineSelection(const Graph& graph, const Planning& planning, const ExecutorOptions& options,
                                 gpu::GpuRuntime& runtime, gpu::StreamView stream, const kernels::Table& kernels,
                                 CompiledEngines& compiled)
    : graph_(graph),
      planning_(planning),
      options_(options),
      runtime_(runtime),
      stream_(stream),
      kernels_(kernels),
      compiled_(compiled) {}

Plan EngineSelection::run() {
  SettledPlan candidate = settled(planning_.fusions.at(0));
  if (planning_.fusions.size() > 1) candidate = fastest(std::move(candidate));
  notes_ = std::move(candidate.notes);
  compiled_.choose_products(candidate.winners);  // a plan that was tried later may have chosen other algorithms
  compiled_.keep_chosen(candidate.plan);
  note_failures(candidate.plan, candidate.failures);
  return std::move(candidate.plan);
}

EngineSelection::SettledPlan EngineSelection::settled(const Fusion& fusion) {
  SettledPlan candidate{.plan = settle(fusion), .failures = failures_, .notes = {}, .winners = {}};
  candidate.winners = options_.tune ? tune(candidate.plan, candidate.failures) : in_use(candidate.plan, kept_);
  candidate.notes = notes_;
  return candidate;
}

// All ranks take the same branches. The kept fusion and the comparisons come from rank 0. If one rank has too little
// memory, all ranks throw.
EngineSelection::SettledPlan EngineSelection::fastest(SettledPlan best) {
  const auto& fusions = planning_.fusions;
  const auto if_it_fits = [&best](const Fusion& fusion, const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      if (error.code() != Errc::kOutOfMemory) throw;
      best.notes.push_back("not used, for want of memory: " + text(fusion));
    }
  };
  for (const Fusion& fusion : fusions) {
    if (text(fusion) != kept_fusion_) continue;
    if (fusion != fusions.front()) if_it_fits(fusion, [&] { best = settled(fusion); });
    return best;
  }
  if (!options_.tune) return best;
  const SettledPlan first = best;
  const auto time = [](const SettledPlan& of) {
    return fmt::format("{:.2f} ms with {}", *of.microseconds * 1e-3, text(fusion_that_runs(of.plan.options)));
  };
  for (std::size_t i = 1; i < fusions.size(); ++i) {
    if_it_fits(fusions[i], [&] {
      SettledPlan other = settled(fusions[i]);
      const bool faster = is_faster(other, best);
      SettledPlan& winner = faster ? other : best;
      if (other.microseconds) winner.notes.push_back("a step takes " + time(best) + ", " + time(other));
      if (faster) best = std::move(other);
    });
  }
  if (!foreign_) keep_fusion(first, text(best.plan.options.fusion));
  return best;
}

bool EngineSelection::is_faster(SettledPlan& other, SettledPlan& best) {
  constexpr const char *kFaster = "faster", *kNotFaster = "not faster";
  const std::vector<std::string> ranks = on_all_ranks(options_.exchange, [&] {
    if (program_hash(other.plan) == program_hash(best.plan)) return kNotFaster;  // the plans are equal
    for (SettledPlan* candidate : {&best, &other}) {
      if (!candidate->microseconds) candidate->microseconds = step_microseconds(candidate->plan);
    }
    return *other.microseconds < *best.microseconds ? kFaster : kNotFaster;
  });
  if (ranks.front() != kFaster && ranks.front() != kNotFaster) throw_unreadable(0);
  return ranks.front() == kFaster;
}

Plan EngineSelection::planned(const Fusion& fusion) const {
  Plan plan = planning_.plan(graph_, fusion, failures_);
  plan.cublaslt = compiled_.cublaslt().version();
  return plan;
}

Plan EngineSelection::settle(const Fusion& fusion) {
  notes_.clear();
  Plan plan;
  Winners kept = of_rank_0(plan, [&] {
    plan = planned(fusion);
    return known_winners(plan);
  });
  foreign_ = kept.foreign;
  kept_ = std::move(kept.list);
  kept_fusion_ = std::move(kept.fusion);
  for (bool again = false;; again = true) {
    const std::vector<Report> reports = parse_reports(on_all_ranks(options_.exchange, [&] {
      if (again) plan = planned(fusion);
      settle_here(plan);
      return report_text({machine_text(plan), hex64(program_hash(plan)), unreported_});
    }));
    unreported_.clear();
    for (const Report& report : reports) {
      if (report.machine == machine_text(plan)) merge_failures(failures_, report.failures);
    }
    if (agree(reports, again)) return plan;
  }
}

void EngineSelection::settle_here(Plan& plan) {
  for (;; plan = planned(plan.options.fusion)) {
    measure_ = choose_winners(plan, kept_) > 0;
    compiled_.choose_products(kept_);
    EngineFailures found;
    const bool runs = try_out(plan, found);
    if (runs && found.empty()) return;
    const bool is_new = merge_failures(failures_, found);
    HVD_ASSERT(is_new);  // otherwise the next plan would be equal to this plan
    merge_failures(unreported_, found);
  }
}

bool EngineSelection::try_out(Plan& plan, EngineFailures& found) {
  if (!compiled_.finalize(plan, found)) return false;  // the caller plans again, so memory is not allocated yet
  try {
    return launch_all(plan, found);
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory || kept_.empty()) throw;
    notes_.push_back(std::string("engines that were the fastest in an earlier run are not used, for want of memory (") +
                     error.what() + ")");
  }
  for (EnginePlan& engine : plan.engines) engine.chosen = 0;
  kept_.clear();
  return compiled_.finalize(plan, found) && launch_all(plan, found);
}

bool EngineSelection::launch_all(Plan& plan, EngineFailures& found) {
  TrialMemory trial_memory(*this, plan);
  bool all = true;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) all = try_engine(plan, e, trial_memory, found) && all;
  all = compiled_.try_products(plan, trial_memory.addresses(), trial_memory.stream(), found) && all;
  trial_memory.wait("the products of cuBLASLt, tried once");
  return all;
}

bool EngineSelection::try_engine(Plan& plan, std::size_t e, TrialMemory& trial_memory, EngineFailures& found) {
  EnginePlan& engine = plan.engines[e];
  while (compiled_.finalize(plan, e, found)) {
    const std::string choice = engine.choices[engine.chosen].text();
    trial_memory.widen(compiled_.workspace_bytes(plan));
    try {
      compiled_.launch_once(plan, e, trial_memory.addresses(), trial_memory.stream());
    } catch (const Error& error) {
      found[engine.signature][choice] = error.what();
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

Winners EngineSelection::of_rank_0(const Plan& plan, const std::function<Winners()>& find) const {
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

Winners EngineSelection::known_winners(const Plan& plan) {
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
  for (const Winner& winner : found_) {  // winners from files take precedence
    const auto is = [&](const Winner& other) { return other.signature == winner.signature; };
    if (std::none_of(known.list.begin(), known.list.end(), is)) known.list.push_back(winner);
  }
  return known;
}

std::vector<Winner> EngineSelection::tune(Plan& plan, EngineFailures& found) {
  EngineFailures refused;  // engines refused while they were timed, perhaps for want of memory; they may be chosen
  // `winners` is empty if rank 0 knew all winners already, or had too little memory to time engines.
  std::vector<Winner> winners = of_rank_0(plan, [&] {
                                  Winners mine;
                                  if (measure_) mine.list = timed_here(plan, found, refused);
                                  return mine;
                                }).list;
  for (const auto& [signature, choices] : refused) {
    std::erase_if(winners, [&choices = choices, hash = signature_hash(signature)](const Winner& winner) {
      return winner.algorithm.empty() && winner.signature == hash && choices.contains(winner.choice.text());
    });
  }
  const Plan before = plan;
  if (!winners.empty() && !choose_if_they_fit(plan, winners, found)) {
    notes_.emplace_back("engines that were the fastest on rank 0 are not used, for want of memory");
    plan = before;
    winners.clear();
  }
  if (winners.empty()) {
    compiled_.choose_products(kept_);
    const bool runs = compiled_.finalize(plan, found);
    HVD_ASSERT(runs);  // these engines ran before timing
  }
  merge_failures(found, refused);
  if (winners.empty()) return in_use(plan, kept_);
  if (measure_) {
    save(winners_path(plan), plan, {.list = winners, .fusion = kept_fusion_, .why_not = {}});
    found_.insert(found_.end(), winners.begin(), winners.end());
  }
  return winners;
}

bool EngineSelection::choose_if_they_fit(Plan& plan, const std::vector<Winner>& winners, EngineFailures& found) {
  choose_winners(plan, winners);
  compiled_.choose_products(winners);
  const bool runs = compiled_.finalize(plan, found);
  HVD_ASSERT(runs);  // the engine that ran before timing is among the candidates
  const MemoryNeed need = memory_need(plan.memory, graph_.batch_size, compiled_.workspace_bytes(plan),
                                      static_cast<int>(PinnedSlots::kSlots));
  return need.total() <= runtime_.memory().free_bytes;
}

std::vector<Winner> EngineSelection::timed_here(Plan timed, EngineFailures& found, EngineFailures& refused) {
  std::vector<Winner> winners;
  std::set<std::uint64_t> known;
  for (const Winner& winner : in_use(timed, kept_)) known.insert(winner.signature);
  for (EnginePlan& engine : timed.engines) {
    if (!known.contains(signature_hash(engine.signature))) continue;
    engine.choices = {engine.choices[engine.chosen]};  // an earlier run has timed the other choices
    engine.chosen = 0;
  }
  try {
    const auto begin = std::chrono::steady_clock::now();
    compiled_.finalize_all(timed, found);
    const auto compiled = std::chrono::steady_clock::now();
    winners = measured(timed, refused);
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
class EngineSelection::TrialStep {
 public:
  TrialStep(const EngineSelection& of, const Plan& plan)
      : trial_memory(of, plan),
        weights_(of.graph_, plan, trial_memory.memory(), of.kernels_, of.runtime_, trial_memory.stream()) {
    weights_.upload_constants(first_loss_scale(plan.options.compute, of.options_.loss_scale));
    weights_.upload_initial(of.options_.seed);
    const Shape& shape = of.graph_.tensor(of.graph_.images).shape;
    const kernels::StepScalars* scalars = trial_memory.memory().scalars();
    of.kernels_.synthetic_batch({.seed = of.options_.seed,
                                 .image_elements = shape.count() / shape[0],
                                 .classes = of.graph_.classes,
                                 .samples = shape[0],
                                 .first_sample = &scalars->first_sample},
                                trial_memory.addresses().matrix(images_of(of.graph_, plan.program)),
                                reinterpret_cast<std::int32_t*>(trial_memory.memory().arenas().labels.data()),
                                trial_memory.native());
    launches_ = of.compiled_.bind(plan, trial_memory.addresses(),
                                  {.graph = of.graph_,
                                   .kernels = of.kernels_,
                                   .seed = of.options_.seed,
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

std::vector<Winner> EngineSelection::measured(const Plan& plan, EngineFailures& found) {
  TrialStep trial_step(*this, plan);
  trial_step.enqueue();
  std::vector<Winner> winners =
      compiled_.tune(plan, trial_step.trial_memory.addresses(), trial_step.trial_memory.stream(), found);
  trial_step.trial_memory.wait("timing engines");
  return winners;
}

// Times the step in the form in which it will run: as a captured graph. Two steps are enqueued before the capture,
// because libraries load kernels at their first use.
double EngineSelection::step_microseconds(const Plan& plan) {
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
void EngineSelection::keep_fusion(const SettledPlan& first, const std::string& fusion) const {
  if (options_.winners_folder.empty()) return;
  Winners file = load_winners(first_file_, first.plan);
  if (file.list.empty()) file.list = first.winners;
  file.fusion = fusion;
  save(first_file_, first.plan, file);
}

void EngineSelection::save(const std::string& path, const Plan& plan, const Winners& winners) const {
  if (options_.winners_folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options_.winners_folder, error);
  if (error) {
    throw Error(Errc::kIo, "cannot make the folder of winners " + options_.winners_folder + ": " + error.message());
  }
  save_winners(path, plan, winners);
}

std::string EngineSelection::winners_path(const Plan& plan) const {
  return (std::filesystem::path(options_.winners_folder) / winners_file_name(plan)).string();
}

// Does not note groups that fell back because of failures, because Program::fallbacks already lists these groups.
void EngineSelection::note_failures(const Plan& plan, const EngineFailures& found) {
  const bool asked = plan.options.fusion.level > 0 && plan.options.fusion.images == Images::kColumns;
  if (const std::string* why = columns_failure(found); asked && why != nullptr) {
    notes_.push_back("images are padded, not columns: " + *why);
  }
  for (std::size_t i = 0; i < plan.engines.size(); ++i) {
    const auto failed = found.find(plan.engines[i].signature);
    if (failed == found.end()) continue;
    for (const auto& [choice, why] : failed->second) {
      std::string& note = notes_.emplace_back(operations_text(first_group(plan, i)));
      note.append(": engine ").append(choice).append(" does not run: ").append(why);
    }
  }
}

}  // namespace hvd::models::cudnn
