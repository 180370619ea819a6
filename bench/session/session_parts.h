// The parts with which rank 0 leads a session: a SessionLeader leads one of `train`, a Validator one of `validate`.
// SessionParts is plain data that borrows everything, among it the RankGroup through which rank 0 directs all ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/hardware/gpu_facts.h"
#include "bench/session/message.h"
#include "bench/session/rank_kind.h"
#include "bench/session/session.h"
#include "bench/session/worker.h"
#include "bench/store/run_record.h"
#include "bench/train/trainer.h"
#include "bench/world/options.h"
#include "bench/world/setup.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Rank 0 sends a directive to all ranks, including itself, and collects all answers before it sends the next
/// directive.
class RankGroup {
 public:
  RankGroup(Engine& engine, Worker& own) : engine_(engine), own_(own) {}

  /// Every rank carries out `directive`. Returns the answers, [rank]. Errors: interrupted if a rank was asked to stop
  /// (every rank then waits for the next directive); errors of the engine and of rank 0's own work.
  std::vector<Answer> execute(const Directive& directive);
  /// Runs `work`, in which rank 0 sends directives, and then ends the session on every rank. After an error, calls
  /// `give_up` and ends the session. Errors: those of `work`, as AgreedError if every rank throws the same error.
  void run(const std::function<void()>& work, const std::function<void(const Error&)>& give_up);

 private:
  /// Makes every rank throw `error` (AgreedError). Returns false if ranks are still carrying out a directive. These
  /// ranks cannot receive another directive, so the caller must abort their waits.
  [[nodiscard]] bool end(const Error& error) noexcept;
  void tell(const Directive& directive);

  Engine& engine_;
  Worker& own_;
  bool in_lockstep_ = true;  // every rank waits for a directive
};

/// Facts that are the same for every run of the session.
struct SessionFacts {
  std::string comm;  ///< "solo", "loopback", "mpi", "nccl"
  int threads = 1;
  bool spare_core = false;
  bool traced = false;
  bool graphs = false;    ///< steps on GPUs are launched as CUDA graphs
  int ranks_at_once = 1;  ///< CoreShare::ranks_at_once on CPUs; number of all ranks on GPUs
  std::vector<RankKind>
      kinds;      ///< [rank]; filled in on rank 0, unless the ranks are threads of one process that trains
  GpuFacts gpus;  ///< facts of all ranks; filled in on rank 0
};

struct SessionParts {
  const Options& options;
  const Setup& setup;
  const SessionFacts& facts;
  Trainer& trainer;       ///< rank 0's own
  RankGroup& rank_group;  ///< all ranks, rank 0 included
  const SessionObserver& observer;
  /// Fills in provenance and ids of a new record before its first save; may be null.
  const std::function<void(RunRecord&)>& prepare;
  const TrainingGpu* gpu = nullptr;  ///< the GPU on which `trainer` trains; null on a CPU
};

}  // namespace hvd::bench
