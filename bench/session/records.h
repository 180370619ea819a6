// Turns the facts and measurements of a session into run records. Rank 0 only.
#pragma once

#include <string>
#include <vector>

#include "bench/hardware/gpu_facts.h"
#include "bench/session/phase_log.h"
#include "bench/session/rank_kind.h"
#include "bench/store/run_record.h"
#include "bench/train/trainer.h"
#include "bench/world/options.h"
#include "bench/world/setup.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Facts that are the same for every run of the session.
struct SessionFacts {
  std::string comm;  ///< "solo", "loopback", "mpi", "nccl"
  int threads = 1;
  bool spare_core = false;
  bool traced = false;
  bool graphs = false;          ///< steps on GPUs are launched as CUDA graphs
  int ranks_at_once = 1;        ///< CoreShare::ranks_at_once on CPUs; number of all ranks on GPUs
  std::vector<RankKind> kinds;  ///< [rank]; filled in on rank 0 of a validation
  GpuFacts gpus;                ///< facts of all ranks; filled in on rank 0
};

/// Returns a record that lacks only the samples, the identity and the provenance of the host.
RunRecord describe_run(const Options& options, const Setup& setup, const SessionFacts& facts, Trainer& trainer,
                       Phase phase);

/// Adds the provenance that only a session knows: backend, transport, options of engine and optimiser. Does not change
/// the keys that `run` already has.
void add_provenance(RunRecord& run, const Options& options, const Setup& setup, const SessionFacts& facts,
                    Trainer& trainer);

/// Marks `run` as incomplete because of `error`. After a lost peer, adds the engine's flight record to the provenance.
void mark_incomplete(RunRecord& run, const Error& error, const Engine& engine);

/// Fills in the samples so far, the median with its interval and replicates, and the throughput.
void fill_samples(RunRecord& run, const PhaseLog& log);

}  // namespace hvd::bench
