// Explains the loss of efficiency by comparing the phases solo, none and full of one session, measured in interleaved
// rounds. Pure.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/median.h"
#include "bench/measure/step_series.h"

namespace hvd::bench {

/// One round visits each phase once. Phase solo has one rank; phases none and full have all ranks. All ranks of a phase
/// have the same number of samples.
struct Round {
  std::vector<RankSamples> solo, none, full;  ///< [rank]
  bool coupled = false;                       ///< a step of phase full takes the mean over ranks (mean_over_ranks())
};

/// Intervals from fewer rounds than this are printed with a warning. Intervals from two or three rounds contain the
/// true value in 85 to 92 % of cases.
inline constexpr std::size_t kMinRoundsToBelieve = 5;

struct Component {
  std::string_view name, title;
};

/// The rows of analyse_efficiency() in their order: the name in the store, and the title in reports. results/names.json
/// carries both to scripts/.
inline constexpr std::array<Component, 9> kComponents{{{"efficiency", "efficiency"},
                                                       {"interference", "interference of the ranks"},
                                                       {"input", "waiting for input"},
                                                       {"stragglers", "waiting for stragglers"},
                                                       {"exposed_communication", "exposed communication"},
                                                       {"control_plane", "control plane"},
                                                       {"overlap_slowdown", "compute slowed by overlap"},
                                                       {"update", "update"},
                                                       {"residual", "residual"}}};

/// One component as a fraction of the step time, for RunRecord, the store and the reports.
struct DecompositionRow {
  std::string component;
  double fraction = 0, seconds = 0;
  std::optional<double> low, high;
  /// Returns true if the interval contains 0. The measurement then cannot tell whether the step has this component. A
  /// component that was 0 in every round counts as resolved, because the step certainly does not have it.
  [[nodiscard]] bool unresolved() const { return low && high && *low <= 0 && 0 <= *high && *low < *high; }
};

struct EfficiencyAnalysis {
  /// Throughput per rank in phase full, divided by the throughput of one rank that has the machine to itself. This is
  /// T1 / TF in the terms of analyse_efficiency().
  Estimate efficiency;
  /// Throughput of all ranks in phase full, divided by the sum of the ranks' throughputs in phase none, where nothing
  /// is reduced. Shows the cost of the engine without interference.
  Estimate against_independent;
  /// The rows of analyse_efficiency(). Their fractions of the step time of phase full sum to 1. Each row's `seconds` is
  /// its fraction times the median step time of phase full.
  std::vector<DecompositionRow> rows;
  /// The replicates of the efficiency (Bootstrap::replicates). Empty if the efficiency has no interval.
  std::vector<double> efficiency_replicates;
};

/// For each round, computes the rows below as fractions of TF. TF is the median step time of the round's visit to phase
/// full.
///   efficiency             T1, the median over the steps of phase solo of (step - input): of one rank, always fed
///   interference           mean over ranks of the median of (step - input) in phase none, minus T1
///   input                  median over the steps of phase full of the mean input over ranks, in which a step waits for
///                          its batch. The row is there only if some step of phase full waited. A rank that waits
///                          longer than others lets them wait for it: stragglers.
///   stragglers             median over the steps of phase full of (mean wait over ranks - shortest wait). The rank
///                          with the shortest wait arrived last, and the other ranks waited for this rank.
///   exposed_communication  median over the steps of the shortest wait over ranks, minus control_plane. The shortest
///                          wait is a wait for communication only.
///   control_plane          shortest wait times the fraction of the engine's time that its control plane takes
///   overlap_slowdown       compute time in full minus compute time in none: the engine takes cores and bandwidth
///   update                 update time in full minus update time in none; the time in none is part of interference
///   residual               TF minus all rows above
/// Each figure is the geometric median over rounds: a slow spell of the host that affects a whole round cancels, and a
/// round with one disturbed visit has little weight. Intervals come from resampled rounds. Resampling few rounds
/// understates the spread of the rounds, so the replicates' deviations from the figure are multiplied by a factor. With
/// five or more rounds, the intervals contain the true value in at least 93 % of cases (simulated in
/// tests/bench/measure/efficiency_coverage_test.cpp, and for disturbed hosts in disturbed_host_test.cpp). There is no
/// interval if there is a single round, or if phase full has fewer than kMinForInterval samples.
EfficiencyAnalysis analyse_efficiency(std::span<const Round> rounds, const IntervalOptions& options = {});

/// An efficiency whose interval is wider than this from end to end is not resolved. The published efficiencies that
/// hvd_bench was built to check are 90 and 68 %: a wider interval could hold both.
inline constexpr double kWidestEfficiency = 0.2;

/// Returns true if the efficiency has an interval of at most kWidestEfficiency.
bool is_resolved(const Estimate& efficiency);

/// The answers for an efficiency that is not resolved, which results/names.json gives to Python, too. kWideText takes
/// the ends of the interval, in percent.
inline constexpr std::string_view kNoIntervalText = "not resolved: too few rounds for an interval";
inline constexpr std::string_view kWideText = "not resolved: between {:.0f} and {:.0f} %";
/// Returns "97.6 % [97.0, 98.6]", "not resolved: between 46 and 101 %", or "not resolved: too few rounds for an
/// interval".
std::string efficiency_text(const Estimate& efficiency);

/// Returns the estimate of a row of the decomposition. Without ends, the estimate has no interval.
Estimate estimate_of(const DecompositionRow& row);

}  // namespace hvd::bench
