// Explains the loss of efficiency by comparing the phases solo, none and full of one session, measured in interleaved
// rounds. Pure.
#pragma once

#include <span>
#include <vector>

#include "bench/measure/estimate.h"
#include "bench/measure/median.h"
#include "bench/measure/step_series.h"

namespace hvd::bench {

/// One round visits each phase once. Phase solo has one rank; none and full have all ranks. Within a phase all ranks
/// have the same number of samples.
struct Round {
  std::vector<RankSamples> solo, none, full;  ///< [rank]
};

/// With fewer rounds the intervals are printed with a warning. Intervals from two or three rounds contain the true
/// value in 85 to 92 % of cases.
inline constexpr std::size_t kFewestRoundsToBelieve = 5;

struct EfficiencyAnalysis {
  /// T1 / TF (below): throughput per rank, divided by the throughput of one rank that has the machine to itself.
  Estimate efficiency;
  /// Throughput of the reducing ranks, divided by the sum of the ranks' throughputs when each trains by itself. Shows
  /// the cost of the engine without interference.
  Estimate against_independent;
  /// The rows of analyse_efficiency(). Their fractions of the step time of phase full sum to 1. `seconds` is the
  /// fraction times the median step time.
  std::vector<DecompositionRow> rows;
  /// Bootstrap replicates of the efficiency, as in Bootstrap. Empty if the efficiency has no interval.
  std::vector<double> efficiency_replicates;
};

/// Each row is computed within a round, as a fraction of TF: the median step time of the round's visit to phase full.
///   efficiency             T1, the median step time of phase solo
///   interference           mean over ranks of the median step time of phase none, minus T1
///   stragglers             median over steps of full of (mean wait over ranks - shortest wait). The rank that waits
///                          least arrived last, and the others waited for it.
///   exposed_communication  median over steps of the shortest wait over ranks, which is a wait for communication only,
///                          minus control_plane
///   control_plane          part of the shortest wait, in proportion to the engine's time in its control plane
///   overlap_slowdown       compute time in full minus compute time in none: the engine takes cores and bandwidth
///   update                 update time in full minus update time in none (which `interference` contains)
///   residual               TF minus all rows above
/// Each figure is the geometric median over rounds: a slow spell of the host that affects a whole round cancels, and a
/// round with one disturbed visit has little weight. Intervals come from resampled rounds. Resampling few rounds
/// understates their spread, so the replicates' deviations are multiplied by a factor. With five or more rounds, the
/// intervals contain the true value in at least 93 % of cases (simulated in tests/bench/efficiency_coverage_test.cpp,
/// on disturbed hosts in disturbed_host_test.cpp). There is no interval for a single round, or if phase full has fewer
/// than kFewestForInterval samples.
EfficiencyAnalysis analyse_efficiency(std::span<const Round> rounds, const IntervalOptions& options = {});

}  // namespace hvd::bench
