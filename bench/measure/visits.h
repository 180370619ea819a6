// How long a session stays in a phase before it changes to another, and whether the first step after a change counts.
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::bench {

/// A session tries to measure this many rounds: what a round shares cancels, so that more and shorter rounds give
/// narrower intervals than fewer and longer ones.
inline constexpr std::size_t kRoundsToAimFor = 20;
/// A session on CPUs does not end before so many rounds because an interval is narrow, only at a cap.
inline constexpr std::size_t kFewestRounds = 10;
/// Visits of a phase that it takes to judge its first steps.
inline constexpr std::size_t kVisitsToJudge = 5;

struct VisitBudget {
  double sample_seconds = 0;  ///< in the slowest phase; 0: unknown
  double round_seconds = 0;   ///< a round of one sample per visit
  double seconds_left = 0;    ///< until the time cap
  std::size_t rounds_done = 0;
  double target_seconds = 1;  ///< a visit is no longer where its samples are short
  std::int64_t shortest = 1, longest = 100;
};

/// Samples of the next round's visits: as many as take `target_seconds`, but so few that kRoundsToAimFor rounds fit the
/// time left, within [shortest, longest].
std::int64_t visit_samples(const VisitBudget& budget);

/// One phase's visits: [visit][sample] seconds, of the slowest rank.
struct PhaseVisits {
  std::string_view phase;
  std::vector<std::vector<double>> visits;
};

struct FirstStepVerdict {
  bool discard = false;
  /// Says what was decided, and from which figures.
  std::string text = "kept: too few visits to tell whether they take longer than the others";
};

/// Compares the first sample of every visit with the median of the others of that visit. First samples are to be
/// discarded if in one phase they take longer: by half a percent or more, with a 95 % interval above 0.
/// Simulated, with five to twenty visits of each phase: 3 to 11 % of sessions discard where nothing takes longer; an
/// excess of twice a step's noise is found in all, one of half of it in 45 to 90 %.
/// Visits of a single sample have nothing to compare with and are left out; fewer than kVisitsToJudge others in a phase
/// decide nothing.
FirstStepVerdict judge_first_steps(std::span<const PhaseVisits> phases, std::uint64_t seed);

}  // namespace hvd::bench
