// Turns what a session knows and measured into run records. Rank 0 only.
#pragma once

#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/run_record.h"
#include "bench/train/gpu_facts.h"
#include "bench/train/phase_log.h"
#include "bench/train/rank_kind.h"
#include "bench/train/setup.h"
#include "bench/train/trainer.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// What holds for every run of the session.
struct SessionFacts {
  std::string comm;  ///< "solo", "loopback", "mpi", "nccl", "hierarchical"
  int threads = 1;
  bool spare_core = false;
  bool traced = false;
  bool graphs = false;          ///< steps on GPUs are CUDA graphs
  int ranks_at_once = 1;        ///< CoreShare::ranks_at_once; GPUs are not shared
  std::vector<RankKind> kinds;  ///< [rank]; of rank 0 in a validation
  GpuFacts gpus;                ///< of all ranks; rank 0's alone is filled in
};

/// A record with everything but samples, identity and provenance of the host.
RunRecord describe_run(const Options& options, const Setup& setup, const SessionFacts& facts, Trainer& trainer,
                       Phase phase);

/// What only a session knows of its provenance: backend, transport, knobs of engine and optimiser. Keys that
/// `run` has already are kept.
void add_provenance(RunRecord& run, const Options& options, const Setup& setup, const SessionFacts& facts,
                    Trainer& trainer);

/// Makes `run` an incomplete one because of `error`; after a lost peer, with the flight record in its provenance.
void mark_incomplete(RunRecord& run, const Error& error, const Engine& engine);

/// Samples so far, the median with its interval and replicates, the throughput.
void fill_samples(RunRecord& run, const PhaseLog& log);

}  // namespace hvd::bench
