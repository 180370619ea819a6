// Decides how many steps a session spends in a phase before it changes to another phase (one visit), and whether the
// first step after a change counts. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::bench {

/// A session tries to measure this many rounds. Disturbances of a whole round cancel, so more and shorter rounds give
/// narrower intervals than fewer and longer ones.
inline constexpr std::size_t kRoundsToAimFor = 20;
/// A session with fewer rounds than this ends only at a cap, even if its interval is narrow.
inline constexpr std::size_t kMinRounds = 12;
/// The first steps of a phase's visits are judged only if the phase has at least this many visits.
inline constexpr std::size_t kVisitsToJudge = 5;

struct VisitBudget {
  double sample_seconds = 0;  ///< seconds per sample in the slowest phase; 0: unknown
  double round_seconds = 0;   ///< seconds of a round with one sample per visit
  double seconds_left = 0;    ///< seconds until the time cap
  std::size_t rounds_done = 0;
  std::size_t rounds_to_aim_for = kRoundsToAimFor;
  double unmeasured_samples = 0;  ///< time of the unmeasured steps of a visit, in samples
  double target_seconds = 1;      ///< longest duration of a visit, unless `shortest` samples take longer
  std::int64_t shortest = 1, longest = 100;
};

/// Returns the number of samples per visit in the next round. A visit takes `target_seconds`, or less time if
/// `rounds_to_aim_for` rounds would otherwise not fit into the time left. The number is clamped to [shortest, longest].
std::int64_t visit_samples(const VisitBudget& budget);

/// The visits of one phase: [visit][sample], seconds of the slowest rank.
struct PhaseVisits {
  std::string_view phase;
  std::vector<std::vector<double>> visits;
};

struct FirstStepVerdict {
  bool discard = false;
  /// States the decision and the figures that led to it.
  std::string text = "kept: too few visits to tell whether they take longer than the others";
};

/// Compares the first sample of every visit with the median of the visit's other samples. First samples are discarded
/// if in some phase they take longer than the other samples by half a percent or more, and if the 95 % interval of
/// this excess lies above 0.
/// In simulations with five to twenty visits of each phase, 3 to 11 % of sessions discard first samples that take no
/// longer than other samples. An excess of twice a step's noise is found in all sessions. An excess of half a step's
/// noise is found in 45 to 90 % of sessions. Visits with a single sample are left out, because this sample has no
/// others to be compared with. Nothing is discarded if a phase has fewer than kVisitsToJudge visits of two or more
/// samples.
FirstStepVerdict judge_first_steps(std::span<const PhaseVisits> phases, std::uint64_t seed);

}  // namespace hvd::bench
