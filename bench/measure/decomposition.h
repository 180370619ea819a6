// Where the efficiency went: phases solo, none and full of one session, measured in interleaved rounds,
// against each other. Pure.
#pragma once

#include <span>
#include <vector>

#include "bench/measure/median.h"
#include "bench/run_record.h"

namespace hvd::bench {

/// One round: each phase once. solo has one rank, none and full all of them; within a phase all ranks have
/// the same number of samples.
struct Round {
  std::vector<RankSamples> solo, none, full;  ///< [rank]
};

struct EfficiencyAnalysis {
  /// T1 / TF: throughput per rank against the one rank that had the machine to itself.
  Estimate efficiency;
  /// Throughput of the reducing ranks over the sum of the ranks' throughputs when each trains for itself:
  /// what the engine costs, interference left out.
  Estimate against_independent;
  /// The rows below; their fractions of the full run's step time TF sum to 1.
  std::vector<DecompositionRow> rows;
};

/// Rows, in seconds per step (fraction = seconds / TF, TF = median over steps of the maximum over ranks):
///   efficiency             T1, the median step of phase solo
///   interference           mean over ranks of the median step of phase none, minus T1
///   stragglers             median over steps of the slowest rank of phase none, minus that mean
///   exposed_communication  median over steps of the shortest wait over ranks (the last rank to arrive waits
///                          for communication only; the others wait for it too), minus control_plane
///   control_plane          the part of that wait in proportion to the engine's time in its control plane
///   overlap_slowdown       compute in full minus in none: the engine takes cores and memory from it
///   update                 update in full minus in none (its interference is in `interference` already)
///   residual               what is left
/// Intervals resample rounds, then blocks of steps within them, the same steps for all ranks of a phase.
EfficiencyAnalysis analyse_efficiency(std::span<const Round> rounds, const IntervalOptions& options = {});

}  // namespace hvd::bench
