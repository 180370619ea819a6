// The runs of a session on rank 0: one for each phase, with its samples so far and its record. The SessionLeader
// measures and fills the logs; a SessionRuns saves the records: when they begin, while they grow, when they are
// complete, and when the session fails. It also follows the loss of the phase that trains, which concerns all runs.
//
// Rank 0's thread owns a SessionRuns and its LossWatch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/session/message.h"
#include "bench/session/phase_log.h"
#include "bench/session/session_parts.h"
#include "bench/store/run_record.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "models/replay/replay.h"

namespace hvd::bench {

/// Follows the loss of the phase that trains. The loss must stay finite, because times of steps that compute with NaN
/// mean nothing. The loss should not collapse, because a network that has memorised its batch computes with vanishing
/// gradients, which need less power than real ones. Pure.
class LossWatch {
 public:
  /// Adds the losses of some steps. `answers`: one for each rank that trained. `first_step`: number of the first of
  /// these steps, counted from 1 as in Trainer::steps_done().
  void add(const std::vector<Answer>& answers, std::uint64_t first_step);

  /// Returns true if a loss was not finite.
  [[nodiscard]] bool failed() const { return !problem_.empty(); }
  /// Returns a text that names the first loss that was not finite and what to do; "" if all losses were finite.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// Returns a warning if the mean loss over ranks once fell below a thousandth of the first step's loss, otherwise "".
  [[nodiscard]] std::string caution() const;

 private:
  std::optional<double> first_;  // loss of the first step, mean over ranks
  double lowest_ = 0;            // lowest mean over ranks of any step
  std::uint64_t lowest_at_ = 0;  // number of the step with the lowest mean, from 1
  std::string problem_;
};

/// One phase of the session with its record.
struct PhaseRun {
  /// The last three are those of PhaseLog.
  PhaseRun(Phase which, std::size_t ranks, int steps_per_sample, bool coupled)
      : phase(which), log(ranks, steps_per_sample, coupled) {}
  /// Computes `half_width` again if there are enough new samples.
  void judge(std::uint64_t seed);

  Phase phase;
  PhaseLog log;
  RunRecord record;
  OperationLog operations;
  std::unique_ptr<models::ReplayRecorder> recorder;
  std::uint64_t steps = 0, cycles = 0;  ///< measured steps, and rank 0's negotiation cycles in them
  bool has_loss = false;
  double step_seconds = 0;    ///< seconds per step of the slowest rank in a recent segment; 0: unknown
  double half_width = 0;      ///< relative half width of the interval, as last computed
  std::size_t judged_at = 0;  ///< number of samples when half_width was computed
};

class SessionRuns {
 public:
  explicit SessionRuns(const SessionParts& session);

  /// Phases solo, none and full, or the session's only phase.
  [[nodiscard]] std::vector<PhaseRun>& phases() { return phases_; }
  [[nodiscard]] const std::vector<PhaseRun>& phases() const { return phases_; }
  /// The phase in which the session warms up, which is the last one.
  [[nodiscard]] PhaseRun& main_run() { return phases_.back(); }
  [[nodiscard]] const PhaseRun& main_run() const { return phases_.back(); }

  /// Call when the records are made (begin_record()): saves them for the first time.
  void begin();
  /// Saves the samples so far if the last save was long enough ago.
  void save_if_due();
  /// Fills in all samples, and saves the records as complete.
  void complete(const std::string& stop_reason);
  /// Saves the records as incomplete if they have begun. Errors of the observer are ignored.
  void give_up(const Error& error);
  [[nodiscard]] std::vector<RunRecord> take_records();  ///< phase full last

  /// Adds the losses of steps of `phase_run`. Errors: check_failed if the runs have begun and a loss is not finite.
  void follow_loss(const PhaseRun& phase_run, const std::vector<Answer>& answers);
  /// Returns true if a loss was not finite.
  [[nodiscard]] bool diverged() const { return loss_.failed(); }
  /// Errors: check_failed if a loss was not finite.
  void require_finite_loss();

 private:
  void fill(PhaseRun& phase_run);  ///< puts the samples so far into the record of `phase_run`
  void save(PhaseRun& phase_run);

  const SessionParts session_;
  std::vector<PhaseRun> phases_;
  LossWatch loss_;
  bool begun_ = false;
  Clock::time_point last_save_ = Clock::now();
  std::chrono::nanoseconds save_pause_{0};
};

}  // namespace hvd::bench
