// The parts with which rank 0 leads a session: a SessionLeader leads one of `train`, a Validator one of `validate`.
// Plain data that borrows everything.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/hardware/gpu_facts.h"
#include "bench/session/rank_group.h"
#include "bench/session/rank_kind.h"
#include "bench/session/session.h"
#include "bench/store/run_record.h"
#include "bench/train/trainer.h"
#include "bench/train/training_gpu.h"
#include "bench/world/options.h"
#include "bench/world/setup.h"

namespace hvd::bench {

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
