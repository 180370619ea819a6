// Runs the sequence of a session on rank 0: check, warm up, measure (one phase, or solo, none and full in interleaved
// rounds), check again, write the records. The SessionLeader decides; the workers act (session_parts.h).
//
// Rank 0's thread owns a SessionLeader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure/stopping_rule.h"
#include "bench/session/round_plan.h"
#include "bench/session/session_parts.h"
#include "bench/session/session_runs.h"
#include "engine/base/deadline.h"

namespace hvd::bench {

/// Data for cautions and explanations (notes.h).
struct Findings {
  std::string warm_up;
  bool warmed_up = true;                       ///< the warm-up ended steady, or after the number of steps asked for
  double target_half_width = 0;                ///< the user's target, relative; 0: the user gave a number of samples
  std::size_t rounds = 0;                      ///< number of rounds from which `efficiency` was computed
  std::string first_steps;                     ///< RoundPlan::first_steps(): the decision about first steps, and why
  std::vector<double> bucket_seconds;          ///< [bucket], time to reduce the bucket alone; empty: not measured
  std::optional<models::ReplayProfile> ready;  ///< when gradients became ready, in phase none if it was measured
  std::optional<EfficiencyAnalysis> efficiency;
};

class SessionLeader {
 public:
  explicit SessionLeader(const SessionParts& session);

  /// Runs the whole session. An error is thrown after the runs that had begun were saved as incomplete. The error is an
  /// AgreedError if the other ranks know it.
  void run();

  [[nodiscard]] std::vector<RunRecord> take_runs() { return runs_.take_records(); }  ///< phase full last
  [[nodiscard]] const Findings& findings() const { return findings_; }
  /// Returns the profile for a replay file: when rank 0's gradients became ready. The profile comes from phase solo if
  /// the session has that phase.
  [[nodiscard]] models::ReplayProfile recorded() const { return runs_.phases().front().recorder->profile(); }

 private:
  void conduct();
  void check_reduction();
  void warm_up();
  void time_buckets();
  /// Adds a caution if stand-alone reductions on GPUs have a far lower bandwidth than the link that they use.
  void judge_bandwidth(RunRecord& run) const;
  /// Makes the records of the runs, and saves them.
  void start_runs();
  /// Runs a few more steps of the phase for the replay profile only, because recording would disturb measured steps.
  void record_apart(PhaseRun& phase_run);
  /// Call once the step time is roughly known. If fewer than kMinRounds rounds fit into the time cap, tells what
  /// would fit. Errors: inconclusive if too few rounds fit for an interval, unless `settled` is false: the step may
  /// then be one of the first, which take longer.
  void require_rounds(double step_seconds, bool settled);
  /// Plans the rounds from the last steps of the warm-up, tells the plan, and sets the promised time in rule_.
  void plan_rounds();
  void tell(const std::string& line) const;
  std::string measure_one_phase();
  std::string measure_rounds();
  void measure_round(std::int64_t samples_per_visit, std::uint64_t number);
  void visit(PhaseRun& phase_run, std::int64_t samples);
  [[nodiscard]] RoundPlan::Logs logs();
  [[nodiscard]] double round_step_seconds() const;  ///< seconds of one step of each phase
  [[nodiscard]] std::int64_t next_visit();          ///< samples of the next visit
  void check_at_the_end();
  void settle_rounds();
  void complete(const std::string& stop_reason);

  /// Trains `steps` steps in segments of about half a second and logs all except the first `discard` steps.
  void train(PhaseRun& phase_run, std::int64_t steps, std::int64_t discard);
  [[nodiscard]] std::int64_t segment_steps(double step_seconds) const;
  /// Errors: inconclusive if the first samples, at `step_seconds` per step, do not fit into the time cap.
  void require_time_for_samples(double step_seconds) const;
  [[nodiscard]] MeasurementState judge(double next_seconds);
  void tell_progress(const char* stage, const PhaseRun& phase_run, double half_width, double seconds_left);
  [[nodiscard]] double elapsed() const;

  const SessionParts session_;
  StoppingRule rule_;  // declared before rounds_, which is made from rule_
  SessionRuns runs_;
  RoundPlan rounds_;
  std::string checks_;
  std::vector<double> last_warm_up_steps_;  // the steps that warm-up ended with
  Findings findings_;
  std::int64_t warm_up_steps_ = 0;
  std::int64_t last_phase_ = -1;  // index into runs_.phases() of the phase that ran last; -1: the warm-up
  bool room_checked_ = false;     // require_rounds() was called
  Clock::time_point begin_ = Clock::now();
  const OtherPrograms others_;
  Clock::time_point last_progress_{};
};

}  // namespace hvd::bench
