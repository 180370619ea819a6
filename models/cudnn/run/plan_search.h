// Finds a plan that runs on the present GPU, before a step is made. Engines are finalised and launched once. If no
// engine of a group runs, the graph is planned again without these engines, so that the group falls back to a lower
// fusion level (lowering.h). Planning repeats until all groups run. It fails if a convolution does not run even without
// fusion. Each rank does all this on its own. Then the ranks exchange reports, so that equal GPUs get equal plans
// (engine_failures.h). On request, candidate engines are timed, and then whole steps with other fusions
// (PlanSource::fusions).
//
// All device memory of the search is freed before the step allocates its own memory. One thread uses the object,
// with the GPU current on this thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/cudnn/run/executor.h"
#include "models/cudnn/run/group_launcher.h"
#include "models/cudnn/run/step_memory.h"

namespace hvd::models::cudnn {

class PlanSearch {
 public:
  /// All arguments must outlive this object. `stream`: the stream of the step and of all trial launches.
  PlanSearch(const Graph& graph, const PlanSource& plan_source, const ExecutorOptions& options,
             gpu::GpuRuntime& runtime, gpu::StreamView stream, const kernels::Table& kernels, GroupLauncher& launcher);

  /// Returns the plan, with its chosen engines finalised. Collective. Errors: see make_cudnn_step().
  [[nodiscard]] Plan run();
  /// Returns one line for each request that could not be met and for each comparison of whole steps' times. The plan's
  /// own fallbacks and the notes of GroupLauncher are left out.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  class TrialMemory;
  class TrialStep;
  /// A plan whose groups all run, and how it was found.
  struct RunnablePlan {
    Plan plan;
    EngineFailures failures;
    std::vector<std::string> notes;
    std::vector<Winner> winners;
    std::optional<double> microseconds = {};  ///< duration of a step, if it was timed
  };
  /// Collective. Returns a plan with `fusion` whose groups all run. If timing is requested, the plan's engines have
  /// been timed. Errors: out_of_memory, on all ranks, if one rank has too little memory.
  RunnablePlan runnable_plan(const FusionOptions& fusion);
  /// Collective. Returns a plan with `fusion` whose groups all run on every rank with this GPU.
  Plan agreed_plan(const FusionOptions& fusion);
  /// Replaces `plan` by plans without failed engines, until all groups run on this rank.
  void make_runnable_here(Plan& plan);
  /// Collective. Returns `best`, or the plan with another fusion that is known or measured to be faster.
  RunnablePlan fastest(RunnablePlan best);
  /// Collective. Returns whether a step of `other` takes less time than a step of `best` on rank 0.
  bool is_faster(RunnablePlan& other, RunnablePlan& best);
  /// Returns the duration of forward and backward, which run as a captured graph.
  [[nodiscard]] double step_microseconds(const Plan& plan);
  [[nodiscard]] Plan new_plan(const FusionOptions& fusion) const;
  /// Collective. Calls `find` on all ranks; `find` may change `plan`. Returns rank 0's winners, or this rank's winners
  /// if rank 0 has another GPU or cuDNN.
  [[nodiscard]] Winners of_rank_0(const Plan& plan, const std::function<Winners()>& find) const;
  /// Returns the winners known from files and from this run. Adds a note about a file that cannot be used.
  Winners known_winners(const Plan& plan);
  /// Returns true if every group has an engine that runs. Adds engines that do not run to `new_failures`. If known
  /// winners need more memory than there is, uses cuDNN's first candidates instead.
  bool try_out(Plan& plan, EngineFailures& new_failures);
  bool launch_all(Plan& plan, EngineFailures& new_failures);
  bool try_engine(Plan& plan, std::size_t e, TrialMemory& trial_memory, EngineFailures& new_failures);
  /// Collective. Chooses the engines that are the fastest on rank 0.
  std::vector<Winner> tune(Plan& plan, EngineFailures& new_failures);
  /// Chooses and finalises `winners`. Returns false if a step with them needs more memory than is free.
  bool choose_if_they_fit(Plan& plan, const std::vector<Winner>& winners, EngineFailures& new_failures);
  /// Times the engines that have no winner in `kept_`. Returns an empty list if there is too little memory.
  std::vector<Winner> timed_here(Plan timed, EngineFailures& new_failures, EngineFailures& refused);
  [[nodiscard]] std::vector<Winner> timed_in_trial_step(const Plan& plan, EngineFailures& new_failures);
  /// A file that cannot be written is a note: it costs a later run its tuning, but not this run its engines.
  void save(const std::string& path, const Plan& plan, const Winners& winners, std::vector<std::string>& notes) const;
  void keep_fusion(const RunnablePlan& first, const std::string& fusion, std::vector<std::string>& notes) const;
  [[nodiscard]] std::string winners_path(const Plan& plan) const;
  void note_failures(const Plan& plan, const EngineFailures& failures);

  const Graph& graph_;
  const PlanSource& plan_source_;
  const ExecutorOptions& options_;
  gpu::GpuRuntime& runtime_;
  gpu::StreamView stream_;
  const kernels::Table& kernels_;
  GroupLauncher& launcher_;
  EngineFailures failures_;    // failures in all plans so far, on all ranks with this GPU
  EngineFailures unreported_;  // those of `failures_` that this rank has not reported to the other ranks yet
  bool measure_ = false;       // true if a signature of the plan has no winner in `kept_`
  std::vector<Winner> kept_;   // winners known from files or earlier timing, for the fusion that is being planned
  std::vector<Winner> timed_winners_;  // winners that were timed in this run
  bool foreign_ = false;               // rank 0 has another GPU or cuDNN than this rank
  std::string kept_fusion_;            // the fusion that was the fastest in an earlier run (Winners::fusion)
  std::string first_file_;             // winners_path() of the first plan; this file has Winners::fusion
  std::vector<std::string> notes_;
};

}  // namespace hvd::models::cudnn
