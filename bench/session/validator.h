// Runs the sequence of a validation on rank 0. Every rank trains on the same batches from the same weights without
// reductions. Each rank's checksums of gradients and weights, and its step times, are compared with those of ranks of
// the same kind (rank_kind.h). The Validator decides; the workers act (session_parts.h).
//
// Rank 0's thread owns a Validator.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/measure/rank_comparison.h"
#include "bench/session/phase_log.h"
#include "bench/session/records.h"
#include "bench/session/session_parts.h"
#include "bench/session/validation.h"
#include "engine/base/deadline.h"

namespace hvd::bench {

class Validator {
 public:
  /// SessionParts::facts must contain the kinds of all ranks.
  explicit Validator(const SessionParts& session);

  /// Runs the session. Errors: thrown after the run was saved as incomplete; AgreedError if all ranks know the error.
  void run();

  [[nodiscard]] RunRecord take_run() { return std::move(record_); }
  [[nodiscard]] Validation take_validation() { return std::move(result_); }

 private:
  void validate();
  void start_run();
  void sum_weights();
  void take_step();
  void measure_use();
  void judge_bits();
  void judge_bits(const std::vector<std::size_t>& group);
  void judge_times();
  void judge_times(const std::vector<std::size_t>& group);
  void complete();
  void give_up(const Error& error);
  void add(ValidationFinding::Kind kind, const std::vector<std::size_t>& ranks, std::string text);
  void save();
  void tell_progress();

  [[nodiscard]] std::size_t ranks() const { return result_.ranks.size(); }
  [[nodiscard]] std::string name_of(std::size_t rank) const;
  [[nodiscard]] std::string snapshot_name(std::size_t snapshot) const;
  /// Names the tensors in which the two ranks' snapshots differ. Collective.
  [[nodiscard]] std::string tensors_that_differ(std::size_t rank, std::size_t other, std::size_t snapshot);

  const SessionParts session_;
  const std::vector<std::vector<std::size_t>> groups_;
  const OtherPrograms others_;
  std::string disturbance_;  // "other programs used 0.92 of 2 processors meanwhile"; empty if they used little
  Validation result_;
  RunRecord record_;
  PhaseLog log_;
  /// [rank][snapshot]: the weights before the first step, the gradients of each step, the weights after the last step.
  std::vector<std::vector<std::uint64_t>> checksums_;
  std::map<std::size_t, std::vector<Answer>> tensors_;  // [snapshot]: per-tensor checksums, if requested so far
  std::int64_t steps_done_ = 0;
  bool started_ = false;  // the run has started
  Clock::time_point begin_ = Clock::now();
};

}  // namespace hvd::bench
