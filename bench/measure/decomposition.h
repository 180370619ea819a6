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

/// Of fewer rounds the intervals below are printed with a warning: where visits differ from one another, those of two
/// rounds hold the truth in 85 to 90 % of cases, those of three or four in 90 to 95 %.
inline constexpr std::size_t kFewestRoundsToBelieve = 5;

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
/// Intervals resample rounds, then blocks of steps within them, the same steps for all ranks of a phase. So what a
/// round shares (a slow spell of the host) cancels in a ratio, and what a visit has to itself does not. Few rounds
/// understate how much visits differ: the deviations are widened by sqrt(R / (R - 1)) for R rounds. From five rounds on
/// they hold the truth in 93 % of cases and more (simulated in tests/bench/efficiency_coverage_test.cpp). A single
/// round says nothing about how rounds differ, and fewer than kFewestForInterval samples say nothing at all: no
/// interval then.
EfficiencyAnalysis analyse_efficiency(std::span<const Round> rounds, const IntervalOptions& options = {});

}  // namespace hvd::bench
