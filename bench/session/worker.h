// One rank of a session: carries out rank 0's directives, in lockstep with the other ranks. On rank 0 a SessionLeader
// or Validator sends the directives to all ranks, and a Worker carries them out as on every rank.
//
// One thread owns a Worker and makes all calls.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/session/message.h"
#include "bench/train/trainer.h"

namespace hvd::bench {

/// Facts about the worker's process.
struct ProcessFacts {
  int ranks_here = 1;                           ///< ranks of the session in this process (all ranks with loopback)
  int task_processors = 0;                      ///< that Slurm granted the process; 0: not told (bench/world/cores.h)
  bool peers_are_processes = false;             ///< other ranks live in other processes
  std::int64_t baseline_bytes = 0;              ///< resident set before any model was built
  std::function<std::string()> stop_requested;  ///< name of the signal that asked to stop; may be null
};

class Worker {
 public:
  /// `gpu`: the GPU on which `trainer` trains; null on a CPU.
  Worker(Trainer& trainer, TrainingGpu* gpu, ProcessFacts process, std::uint64_t seed);

  /// Carries out one directive. Errors: those of training and of the engine.
  Answer execute(const Directive& directive);
  /// Called on ranks other than 0: carries out directives until the session ends. Errors: those of execute(), and, as
  /// AgreedError, the error with which rank 0 ends the session.
  void follow();

 private:
  /// Ends start-up if this rank has done its first steps. Then all ranks have done theirs, because rank 0 sends
  /// `directive` only after all ranks have answered the previous directive.
  void leave_startup(const Directive& directive);
  Answer train(const Directive& directive);
  Answer time_buckets();
  Answer final_check();
  Answer measure_memory();
  Answer sum_weights();
  Answer sum_step(const Turn& turn);
  /// Keeps `checksums` (one per parameter) as a snapshot.
  Answer keep(std::vector<std::uint64_t> checksums);

  Trainer& trainer_;
  TrainingGpu* const gpu_;
  ProcessFacts process_;
  std::uint64_t seed_;
  std::int64_t peak_before_check_ = 0;
  const double processor_seconds_before_;
  std::vector<std::vector<std::uint64_t>> snapshots_;  // [snapshot][parameter], from Task::kSumWeights and kSumStep
  bool started_up_ = false;
};

}  // namespace hvd::bench
