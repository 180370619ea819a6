// Finds a plan that runs on the present GPU, before a step is made. Engines are finalised and launched once. If no
// engine of a group runs, the graph is planned again without these engines, so that the group falls back (analyse.h).
// This repeats until all groups run, and fails if a single convolution does not run. Ranks tell one another which
// engines failed, so that ranks with equal GPUs get equal plans. On request, candidate engines are timed, and then
// whole steps with other fusions (Planning::fusions).
//
// All device memory used here is freed before the step allocates its own memory. One thread; the GPU must be current.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cudnn/compiled_engines.h"
#include "models/cudnn/executor.h"
#include "models/cudnn/step_memory.h"

namespace hvd::models::cudnn {

class EngineSelection {
 public:
  /// All arguments must outlive this object. `stream`: the stream of the step and of all trial launches.
  EngineSelection(const Graph& graph, const Planning& planning, const ExecutorOptions& options,
                  gpu::GpuRuntime& runtime, gpu::StreamView stream, const kernels::Table& kernels,
                  CompiledEngines& compiled);

  /// Returns the plan, with its chosen engines finalised. Collective if callbacks are. Errors: see make_cudnn_step().
  [[nodiscard]] Plan run();
  /// One line for each request that could not be met and for each timing. Leaves out the plan's own fallbacks and the
  /// notes of CompiledEngines.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  class TrialMemory;
  class TrialStep;
  // First line of the text that ranks agree on. kMeasure and kKeep have the same length.
  static constexpr std::string_view kMeasure = "time\n", kKeep = "keep\n";
  struct Tuning {
    bool measure = false;
    Winners winners;
  };
  /// A plan whose groups all run, and how it was found.
  struct SettledPlan {
    Plan plan;
    EngineFailures failures;
    std::vector<std::string> notes;
    std::vector<Winner> winners;
    std::optional<double> microseconds = {};  ///< duration of a step, if it was timed
  };
  /// What happens if a rank has too little memory for a plan: kMustFit throws out_of_memory, kIfItFits returns none.
  enum class MemoryDemand : std::uint8_t { kMustFit, kIfItFits };

  /// Returns a plan with `fusion` whose groups all run. If timing is requested, the plan's engines have been timed.
  std::optional<SettledPlan> settled(const Fusion& fusion, MemoryDemand demand);
  /// Returns a plan with `fusion` whose groups all run.
  std::optional<Plan> settle(const Fusion& fusion, MemoryDemand demand);
  /// Returns `first`, or the plan with another fusion that is known or measured to be faster.
  SettledPlan fastest(SettledPlan first);
  /// Returns true if `here` is true on any rank. Collective.
  [[nodiscard]] bool somewhere(bool here) const;
  /// Times forward and backward, launched as a captured graph. Returns none if there is too little memory.
  [[nodiscard]] std::optional<double> step_microseconds(const Plan& plan);
  /// Returns the answer of `agree` to `mine`. Keeps the winners of `mine` if the answer is for another GPU.
  [[nodiscard]] Tuning agreed(const Plan& plan, Tuning mine) const;
  /// Chooses the winners known from files or this run. Returns true if candidates are to be timed.
  bool choose_kept(Plan& plan);
  /// Returns true if every group has an engine that runs. Adds engines that do not run to `found`. If known winners
  /// need more memory than there is, uses cuDNN's first candidates instead.
  bool try_out(Plan& plan, EngineFailures& found);
  bool launch_all(Plan& plan, EngineFailures& found);
  bool try_engine(Plan& plan, std::size_t e, TrialMemory& trial_memory, EngineFailures& found);
  /// Collective: adds the failures of all ranks with this GPU to `failures_`. Returns true if any rank found a failure.
  /// Errors: mismatch, on all ranks, if ranks with equal GPUs have different plans.
  bool share(const Plan& plan, const EngineFailures& found);
  std::vector<Winner> tune(Plan& plan, EngineFailures& found);
  [[nodiscard]] std::vector<Winner> measured(const Plan& plan, EngineFailures& found);
  void save(const Plan& plan, const Winners& winners) const;
  void keep_fusion(const Plan& plan, const std::vector<Winner>& winners, const std::string& fusion) const;
  [[nodiscard]] std::string winners_path(const Plan& plan) const;
  void note_failures(const Plan& plan, const EngineFailures& found);

  const Graph& graph_;
  const Planning& planning_;
  const ExecutorOptions& options_;
  gpu::GpuRuntime& runtime_;
  gpu::StreamView stream_;
  const kernels::Table& kernels_;
  CompiledEngines& compiled_;
  EngineFailures failures_;  // from all rounds and ranks
  bool measure_ = false;
  std::vector<Winner> kept_;   // winners that choose_kept() chose
  std::vector<Winner> found_;  // winners that were timed in this run
  std::string kept_fusion_;    // the fusion that was the fastest in an earlier run (Winners::fusion)
  std::vector<std::string> notes_;
};

}  // namespace hvd::models::cudnn
