// Plans an interleaved session from the time of its first steps: the number of rounds, the steps that the session
// spends in a phase before it changes to another phase (one visit), and the time that the session takes. Where too few
// rounds fit, proposes a smaller batch or image. Decides also whether the first step after a change of phase counts.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/stopping_rule.h"

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

/// What the session knows before its first round. The plan assumes that a step takes equally long in all three phases.
struct SessionPace {
  double step_seconds = 0;  ///< seconds of a step of the slowest rank
  std::int64_t steps_per_sample = 1;
  double seconds_left = 0;            ///< seconds until the time cap
  double samples_needed = 0;          ///< samples of each phase for a narrow interval; 0: unknown
  std::int64_t unmeasured_steps = 0;  ///< steps at the start of every visit that do not count
  std::int64_t samples_per_visit = 1;
  /// If true, the visits of the first kVisitsToJudge rounds have at least two samples each, as far as the time allows.
  bool judges_first_steps = false;
  /// The session takes this many rounds, or as many as fill seconds_to_aim_for if these are more, where they fit.
  std::size_t rounds_to_aim_for = 20;
  double seconds_to_aim_for = 0;
  std::optional<std::int64_t> exact_samples =
      std::nullopt;  ///< number of samples of each phase that the user asked for
};

struct SessionPlan {
  std::size_t rounds = 0;
  std::int64_t samples_per_visit = 0;
  double seconds = 0;               ///< expected duration of the rounds
  std::size_t rounds_that_fit = 0;  ///< into the time left, with visits of samples_per_visit
  bool limited = false;             ///< as many rounds were wanted as fit, or more
};

/// Plans the rounds to aim for. Plans more if the interval seems to need more samples, and never more than fit. With
/// `exact_samples`, plans the rounds that these samples take.
SessionPlan plan_rounds(const SessionPace& pace);

/// Returns "6.9 s", "0.74 s" or "8.7 ms".
std::string seconds_text(double seconds);
/// Returns the text "14 rounds of 3 phases, 2 steps a visit, 0.97 s a step: about 62 s".
std::string plan_line(const SessionPlan& plan, double step_seconds, std::int64_t steps_per_sample);

/// A session keeps its promised time within a third: it ends no earlier than 2/3 of it, and no later than 4/3 of it.
inline constexpr double kPromiseKept = 1.0 / 3.0;

/// Sets the rule's times so that the session keeps the plan's time, unless the rule asks for exact_samples.
/// `elapsed_seconds`: now, when the rounds begin.
void promise(StoppingRule& rule, const SessionPlan& plan, double elapsed_seconds);

/// The steps of the shortest session with kMinRounds rounds.
struct ShortestSession {
  std::int64_t steps_per_visit = 1;  ///< unmeasured steps included
  /// Steps before the first round. The default is enough to find step times steady, and to check the reduction.
  std::int64_t steps_before = 12;

  /// Seconds of the session if a step takes `step_seconds`.
  [[nodiscard]] double seconds(double step_seconds) const;
  /// The longest step with which the session fits into `seconds`.
  [[nodiscard]] double longest_step(double seconds) const;
  /// Number of rounds that fit into `seconds`, without the steps before the first round.
  [[nodiscard]] std::size_t rounds(double step_seconds, double seconds) const;

 private:
  [[nodiscard]] double steps(std::size_t rounds) const;
};

struct WorkSize {
  std::int64_t batch = 1;  ///< images per rank and step
  std::int64_t image = 0;  ///< height and width
  bool operator==(const WorkSize&) const = default;
};

/// Returns the largest work, at most `tried`, whose step takes at most `longest_step` seconds, if a step of `tried`
/// took `step_seconds` and time is proportional to batch and pixels. The batch is lowered first. The image size is
/// lowered only at batch 1, to one of a list of usual sizes of at least `smallest_image`. Nothing: no such work fits.
std::optional<WorkSize> work_that_fits(WorkSize tried, double step_seconds, double longest_step,
                                       std::int64_t smallest_image);
/// Returns the smallest work that work_that_fits() may propose.
WorkSize smallest_work(WorkSize tried, std::int64_t smallest_image);

/// Returns "--batch-size 1" or "--batch-size 1 --image-size 160".
std::string size_options(WorkSize size, WorkSize tried);

}  // namespace hvd::bench
