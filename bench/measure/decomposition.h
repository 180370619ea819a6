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

/// With fewer rounds the intervals below are printed with a warning: from two or three rounds they hold the truth in 85
/// to 92 % of cases.
inline constexpr std::size_t kFewestRoundsToBelieve = 5;

struct EfficiencyAnalysis {
  /// T1 / TF: throughput per rank against the one rank that had the machine to itself.
  Estimate efficiency;
  /// Throughput of the reducing ranks over the sum of the ranks' throughputs when each trains for itself:
  /// what the engine costs, interference left out.
  Estimate against_independent;
  /// The rows below; their fractions of the full run's step time sum to 1. Seconds are these fractions of its median.
  std::vector<DecompositionRow> rows;
  /// Replicates of the efficiency, as in Bootstrap; empty if it has no interval.
  std::vector<double> efficiency_replicates;
};

/// Rows, taken within each round as parts of TF, the median over the steps of the round's visit in full:
///   efficiency             T1, the median step of phase solo
///   interference           mean over ranks of the median step of phase none, minus T1
///   stragglers             median over steps of full of the mean wait over ranks minus the shortest: the rank that
///                          waits least arrived last, and the others waited for it
///   exposed_communication  median over steps of the shortest wait over ranks, which is for communication only, minus
///                          control_plane
///   control_plane          the part of that wait in proportion to the engine's time in its control plane
///   overlap_slowdown       compute in full minus in none: the engine takes cores and memory from it
///   update                 update in full minus in none (its interference is in `interference` already)
///   residual               what is left
/// The figures are the geometric median over rounds, so that what a round shares (a slow spell of the host) cancels and
/// a round with one disturbed visit counts little. Intervals resample rounds. Few rounds understate how much rounds
/// differ: the deviations are widened. From five rounds on they hold the truth in 93 % of cases and more (simulated in
/// tests/bench/efficiency_coverage_test.cpp, on disturbed hosts in disturbed_host_test.cpp). A single round says
/// nothing about how rounds differ, and fewer than kFewestForInterval samples say nothing at all: no interval then.
EfficiencyAnalysis analyse_efficiency(std::span<const Round> rounds, const IntervalOptions& options = {});

}  // namespace hvd::bench
