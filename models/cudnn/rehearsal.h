// Before a step is made: which plan runs on the GPU that is there. Engines are finalised and launched once; where none
// of a group's runs, the graph is planned again without them, so that the group falls back (analyse.h), until
// everything runs or a single convolution does not. Ranks tell one another what they found, so that equal GPUs end with
// equal plans. Then candidates are timed, if that is wanted, and whole steps of other ways to fuse (Planning::fusions).
//
// Everything happens in device memory that is given back before the step takes its own. One thread; the GPU must be
// current.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cudnn/engine_room.h"
#include "models/cudnn/executor.h"
#include "models/cudnn/step_memory.h"

namespace hvd::models::cudnn {

class Rehearsal {
 public:
  /// Everything given must outlive it. `stream`: that of the step, which the room's handles are bound to.
  Rehearsal(const Graph& graph, const Planning& planning, const ExecutorOptions& options, gpu::GpuRuntime& runtime,
            gpu::StreamView stream, const kernels::Table& kernels, EngineRoom& room);

  /// The plan, with its engines chosen and finalised in the room. Collective, if the options' callbacks are. Errors: as
  /// make_cudnn_step().
  [[nodiscard]] Plan run();
  /// What did not go as asked, a line each, less the plan's own fallbacks and the room's notes.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  class Stage;
  class Trial;
  // In front of what the ranks agree on; equally long.
  static constexpr std::string_view kMeasure = "time\n", kKeep = "keep\n";
  struct Tuning {
    bool measure = false;
    Winners winners;
  };
  /// A plan of which everything runs, as it came about.
  struct Way {
    Plan plan;
    EngineFailures failures;
    std::vector<std::string> notes;
    std::vector<Winner> winners;
    std::optional<double> microseconds = {};  ///< of a step, if it was timed
  };
  /// Of a way that is there to be compared it is enough to know that some rank has no memory for it.
  enum class Wanted : std::uint8_t { kMustFit, kIfItFits };

  /// As `fusion` says, with its engines tuned, if that is wanted.
  std::optional<Way> settled(const Fusion& fusion, Wanted wanted);
  /// A plan of which everything runs.
  std::optional<Plan> settle(const Fusion& fusion, Wanted wanted);
  /// `first`, or another way of fusing that is known to be faster, or found to be.
  Way fastest(Way first);
  /// Whether it is so on any rank; all ask.
  [[nodiscard]] bool somewhere(bool here) const;
  /// Of forward and backward, as a graph; none, for want of memory.
  [[nodiscard]] std::optional<double> step_microseconds(const Plan& plan);
  /// What this rank does: what CudnnOptions::agree says to `mine`, as far as it is for this GPU.
  [[nodiscard]] Tuning agreed(const Plan& plan, Tuning mine) const;
  /// Chooses the winners that are kept from earlier; whether candidates are to be timed.
  bool choose_kept(Plan& plan);
  /// Whether every group has an engine that runs; what does not is added to `found`. Winners that are kept and need
  /// more memory than there is give way to the first candidates.
  bool try_out(Plan& plan, EngineFailures& found);
  bool launch_all(Plan& plan, EngineFailures& found);
  bool try_engine(Plan& plan, std::size_t e, Stage& stage, EngineFailures& found);
  /// Takes in what the ranks found; whether any found something. Errors: mismatch, on all ranks alike, if equal GPUs
  /// have different plans.
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
  EngineRoom& room_;
  EngineFailures failures_;  // of all rounds and ranks
  bool measure_ = false;
  std::vector<Winner> kept_;   // of earlier runs, as far as they are chosen
  std::vector<Winner> found_;  // in this run
  std::string kept_fusion_;    // what an earlier run found to be the fastest (Winners::fusion)
  std::vector<std::string> notes_;
};

}  // namespace hvd::models::cudnn
