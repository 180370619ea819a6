#include "models/cudnn/rehearsal.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iomanip>
#include <sstream>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/cudnn/step_weights.h"

namespace hvd::models::cudnn {
namespace {

constexpr std::chrono::minutes kLongest(10);  // of one wait: a hang, not a slow GPU
constexpr std::chrono::seconds kFarewell(5);  // after an error, which may be a hang

std::string seconds_text(std::chrono::steady_clock::duration time) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << std::chrono::duration<double>(time).count() << " s";
  return std::move(text).str();
}

}  // namespace

/// The memory of a step, for as long as something is tried in it.
class Rehearsal::Stage {
 public:
  Stage(const Rehearsal& of, const Plan& plan)
      : runtime_(of.runtime_),
        plan_(plan),
        stream_(of.stream_),
        workspace_(of.room_.workspace_bytes(plan)),
        memory_(
            runtime_, plan.memory,
            memory_need(plan.memory, of.graph_.batch_size, workspace_, static_cast<int>(PinnedSlots::kSlots)),
            workspace_, [this](std::size_t bytes) { return gradients(bytes); }, stream_) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() {
    try {
      runtime_.synchronize(stream_, Deadline::after(kFarewell), "what was tried");
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the GPU has failed, and whoever used it knows
    }
  }

  void wait(std::string_view what) { runtime_.synchronize(stream_, Deadline::after(kLongest), what); }
  /// At least `bytes` of workspace.
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

  gpu::Runtime& runtime_;
  const Plan& plan_;
  gpu::StreamView stream_;
  gpu::DeviceMemory gradients_;
  std::size_t workspace_;
  StepMemory memory_;
};

Rehearsal::Rehearsal(const Graph& graph, const Planning& planning, const ExecutorOptions& options,
                     gpu::Runtime& runtime, gpu::StreamView stream, const kernels::Table& kernels, EngineRoom& room)
    : graph_(graph),
      planning_(planning),
      options_(options),
      runtime_(runtime),
      stream_(stream),
      kernels_(kernels),
      room_(room) {}

Plan Rehearsal::run() {
  Plan plan = settle();
  EngineFailures found = failures_;
  if (measure_) tune(plan, found);
  room_.keep_chosen(plan);
  note_failures(plan, found);
  return plan;
}

Plan Rehearsal::settle() {
  for (;;) {
    Plan plan = planning_(graph_, failures_);
    plan.cublaslt = room_.cublaslt().version();
    measure_ = choose_kept(plan);
    EngineFailures found;
    const bool runs = try_out(plan, found);
    if (share(plan, found)) continue;
    HVD_ASSERT(runs);
    return plan;
  }
}

bool Rehearsal::try_out(Plan& plan, EngineFailures& found) {
  if (!room_.finalize(plan, found)) return false;  // another plan, before there is memory for this one
  try {
    return launch_all(plan, found);
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory || !kept_) throw;
    notes_.push_back(std::string("engines that were the fastest in an earlier run are not used, for want of memory (") +
                     error.what() + ")");
  }
  for (EnginePlan& engine : plan.engines) engine.chosen = 0;
  return room_.finalize(plan, found) && launch_all(plan, found);
}

bool Rehearsal::launch_all(Plan& plan, EngineFailures& found) {
  Stage stage(*this, plan);
  bool all = true;
  for (std::size_t e = 0; e < plan.engines.size(); ++e) all = try_engine(plan, e, stage, found) && all;
  room_.try_products(plan, stage.addresses(), stage.stream());
  stage.wait("the products of cuBLASLt, tried once");
  return all;
}

bool Rehearsal::try_engine(Plan& plan, std::size_t e, Stage& stage, EngineFailures& found) {
  EnginePlan& engine = plan.engines[e];
  while (room_.finalize(plan, e, found)) {
    const std::string choice = engine.choices[engine.chosen].text();
    stage.widen(room_.workspace_bytes(plan));
    try {
      room_.launch_once(plan, e, stage.addresses(), stage.stream());
    } catch (const Error& error) {
      found[engine.signature][choice] = error.what();
      continue;
    }
    const std::string what = "engine " + choice + " for " + engine.signature;
    try {
      stage.wait(what);
    } catch (const Error& error) {  // the GPU is unusable now: no other engine would run either
      throw Error(error.code(), "trying " + what + ": " + error.what());
    }
    return true;
  }
  return false;
}

bool Rehearsal::share(const Plan& plan, const EngineFailures& found) {
  Findings findings{.any = !found.empty(), .failures = found, .difference = {}};
  if (options_.share) {
    findings = read_reports(options_.share(report_text(plan, found, Detail::kHash)), plan);
    if (!findings.any && !findings.difference.empty()) {  // on all ranks alike
      findings = read_reports(options_.share(report_text(plan, found, Detail::kGroups)), plan);
    }
  }
  const bool fresh = merge_failures(failures_, findings.failures);
  HVD_ASSERT(fresh || findings.failures.empty());  // or the next plan would be the same
  if (findings.any) return true;
  if (!findings.difference.empty()) throw Error(Errc::kMismatch, findings.difference);
  return false;
}

// ---- Timing ----

Rehearsal::Tuning Rehearsal::agreed(const Plan& plan, Tuning mine) const {
  if (!options_.agree) return mine;
  const std::string text =
      options_.agree(std::string(mine.measure ? kMeasure : kKeep) + winners_text(plan, mine.winners));
  mine.measure = text.starts_with(kMeasure);
  Winners all = parse_winners(std::string_view(text).substr(std::min(text.size(), kKeep.size())), plan);
  if (all.why_not.empty()) mine.winners = std::move(all.list);
  return mine;
}

bool Rehearsal::choose_kept(Plan& plan) {
  notes_.clear();
  if (!options_.tune && options_.winners_folder.empty()) return false;
  Tuning tuning;
  if (!options_.winners_folder.empty()) {
    Winners kept = load_winners(winners_path(plan), plan);
    tuning.winners = std::move(kept.list);
    if (!kept.why_not.empty() && std::filesystem::exists(winners_path(plan))) {
      notes_.push_back(winners_path(plan) + ": not used: " + kept.why_not);
    }
  }
  tuning.measure = choose_winners(plan, tuning.winners) > 0 && options_.tune;
  tuning = agreed(plan, std::move(tuning));
  choose_winners(plan, tuning.winners);
  room_.choose_products(tuning.winners);
  kept_ = !tuning.winners.empty();
  return tuning.measure;
}

void Rehearsal::tune(Plan& plan, EngineFailures& found) {
  std::vector<Winner> winners;
  EngineFailures refused;  // while all were timed, for want of memory perhaps: what ran before does so again
  Plan timed = plan;
  try {
    const auto begin = std::chrono::steady_clock::now();
    room_.finalize_all(timed, found);
    const auto compiled = std::chrono::steady_clock::now();
    winners = measured(timed, refused);
    notes_.push_back("engines: " + seconds_text(compiled - begin) + " to compile all candidates, " +
                     seconds_text(std::chrono::steady_clock::now() - compiled) + " to time them");
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory) throw;
    notes_.push_back(std::string("engines were not timed, for want of memory (") + error.what() +
                     "): those that cuDNN and cuBLASLt name first are used");
  }
  winners = agreed(plan, {false, std::move(winners)}).winners;
  choose_winners(plan, winners);
  room_.choose_products(winners);
  const bool runs = room_.finalize(plan, found);
  HVD_ASSERT(runs);  // what ran before timing is among the candidates
  merge_failures(found, refused);
  save(plan, winners);
}

// One step with data of the right kind first, so that engines are timed on numbers as they will meet.
std::vector<Winner> Rehearsal::measured(const Plan& plan, EngineFailures& found) {
  Stage stage(*this, plan);
  StepWeights weights(graph_, plan, stage.memory(), kernels_, runtime_, stage.stream());
  weights.upload_constants(first_loss_scale(plan.options.compute, options_.loss_scale));
  weights.upload_initial(options_.seed);
  const Shape& shape = graph_.tensor(graph_.images).shape;
  const kernels::StepScalars* scalars = stage.memory().scalars();
  kernels_.synthetic_batch({.seed = options_.seed,
                            .image_elements = shape.count() / shape[0],
                            .classes = graph_.classes,
                            .samples = shape[0],
                            .first_sample = &scalars->first_sample},
                           stage.addresses().matrix(images_of(graph_, plan.program)),
                           reinterpret_cast<std::int32_t*>(stage.memory().arenas().labels.data()), stage.native());
  for (const Launch& launch : room_.bind(plan, stage.addresses(),
                                         {.graph = graph_,
                                         .kernels = kernels_,
                                         .seed = options_.seed,
                                         .scalars = scalars,
                                         .loss_scale = stage.memory().loss_scale()})) {
    launch(stage.native());
  }
  std::vector<Winner> winners = room_.tune(plan, stage.addresses(), stage.stream(), found);
  stage.wait("timing engines");
  return winners;
}

void Rehearsal::save(const Plan& plan, const std::vector<Winner>& winners) const {
  if (options_.winners_folder.empty() || winners.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options_.winners_folder, error);
  if (error) {
    throw Error(Errc::kIo, "cannot make the folder of winners " + options_.winners_folder + ": " + error.message());
  }
  save_winners(winners_path(plan), plan, winners);
}

std::string Rehearsal::winners_path(const Plan& plan) const {
  return (std::filesystem::path(options_.winners_folder) / winners_file_name(plan)).string();
}

// Of groups that fell back for it, the plan's own list says so.
void Rehearsal::note_failures(const Plan& plan, const EngineFailures& found) {
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
