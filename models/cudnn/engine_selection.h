// Finds a plan that runs on the present GPU, before a step is made. Engines are finalised and launched once. If no
// engine of a group runs, the graph is planned again without them, so that the group falls back (analyse.h). This
// repeats until all groups run, and fails if a single convolution does not. Each rank does this alone and then reports,
// so that equal GPUs end with equal plans. If timing is requested, candidate engines are timed, and then whole steps
// with other fusions (Planning::fusions). "Collective" means that all ranks call a function equally often.
//
// All device memory used here is freed before the step allocates its own. One thread; the GPU must be current.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/cudnn/compiled_engines.h"
#include "models/cudnn/executor.h"
#include "models/cudnn/step_memory.h"

namespace hvd::models::cudnn {

class EngineSelection {
 public:
  /// All arguments must outlive this object. `stream`: the stream of the step; all trial launches go there.
  EngineSelection(const Graph& graph, const Planning& planning, const ExecutorOptions& options,
                  gpu::GpuRuntime& runtime, gpu::StreamView stream, const kernels::Table& kernels,
                  CompiledEngines& compiled);

  /// Returns the plan, with its chosen engines finalised. Collective. Errors: as make_cudnn_step().
  [[nodiscard]] Plan run();
  /// One line for each request that could not be met and for each timing. Does not repeat the plan's own fallbacks and
  /// the compiled's notes.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  class TrialMemory;
  class TrialStep;
  /// A plan whose groups all run, and how it was found.
  struct SettledPlan {
    Plan plan;
    EngineFailures failures;
    std::vector<std::string> notes;
    std::vector<Winner> winners;
    std::optional<double> microseconds = {};  ///< duration of a step, if it was timed
  };
  /// Collective. Returns a plan with `fusion` whose groups all run, with its engines timed, if that is requested.
  /// Errors: out_of_memory, on all ranks, if one of them lacks the memory.
  SettledPlan settled(const Fusion& fusion);
  /// Collective. Returns a plan with `fusion` whose groups all run on every rank with this GPU.
  Plan settle(const Fusion& fusion);
  /// Plans again, from `plan` on, until all groups run on this rank.
  void settle_here(Plan& plan);
  /// Collective. Returns `best`, or the way with another fusion that is known or measured to be faster.
  SettledPlan fastest(SettledPlan best);
  /// Collective. Returns whether a step of `other` takes less time than one of `best` on rank 0.
  bool is_faster(SettledPlan& other, SettledPlan& best);
  /// Duration of forward and backward, launched as a captured graph.
  [[nodiscard]] double step_microseconds(const Plan& plan);
  [[nodiscard]] Plan planned(const Fusion& fusion) const;
  /// Collective. Returns the winners that `find` returns on rank 0; if these are for another GPU, those that it returns
  /// here. `find` may set `plan`.
  [[nodiscard]] Winners of_rank_0(const Plan& plan, const std::function<Winners()>& find) const;
  /// Returns the winners that are known already. Notes a file that cannot be used.
  Winners known_winners(const Plan& plan);
  /// Returns true if every group has an engine that runs. Adds engines that do not run to `found`. If known winners
  /// need more memory than there is, the first candidates are used instead.
  bool try_out(Plan& plan, EngineFailures& found);
  bool launch_all(Plan& plan, EngineFailures& found);
  bool try_engine(Plan& plan, std::size_t e, TrialMemory& trial_memory, EngineFailures& found);
  /// Collective. Chooses the engines that are the fastest on rank 0.
  std::vector<Winner> tune(Plan& plan, EngineFailures& found);
  /// Times the engines that have no winner in `kept_`. Returns none if there is too little memory.
  std::vector<Winner> timed_here(Plan timed, EngineFailures& found, EngineFailures& refused);
  [[nodiscard]] std::vector<Winner> measured(const Plan& plan, EngineFailures& found);
  void save(const std::string& path, const Plan& plan, const Winners& winners) const;
  void keep_fusion(const SettledPlan& first, const std::string& fusion) const;
  [[nodiscard]] std::string winners_path(const Plan& plan) const;
  void note_failures(const Plan& plan, const EngineFailures& found);

  const Graph& graph_;
  const Planning& planning_;
  const ExecutorOptions& options_;
  gpu::GpuRuntime& runtime_;
  gpu::StreamView stream_;
  const kernels::Table& kernels_;
  CompiledEngines& compiled_;
  EngineFailures unreported_;  // what of `failures_` the other ranks do not know yet
  EngineFailures failures_;    // of all plans so far, from all ranks with this GPU
  bool measure_ = false;       // `kept_` lacks some engine
  std::vector<Winner> kept_;   // winners known before, for the fusion that is being settled
  std::vector<Winner> found_;  // winners that were timed in this run
  std::string kept_fusion_;    // the fusion that was the fastest in an earlier run (Winners::fusion)
  std::string first_file_;     // winners_path() of the first plan, for Winners::fusion
  std::vector<std::string> notes_;
};

}  // namespace hvd::models::cudnn
