// What one phase of a session measured: the samples of all ranks, and the profile of operations. Rank 0 only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/session/message.h"
#include "bench/store/run_record.h"
#include "models/train_step.h"

namespace hvd::bench {

/// Collects the samples of one phase from all ranks, segment by segment.
class PhaseLog {
 public:
  /// `ranks` ranks take part in the phase. A sample is the mean of `steps_per_sample` consecutive steps. `coupled`: the
  /// steps of a rank follow one another without a gap, by its GPU's clock, and reductions make them end on all ranks
  /// together.
  PhaseLog(std::size_t ranks, int steps_per_sample, bool coupled = false);

  /// Appends the samples of ranks 0 .. ranks-1. All ranks must have the same number of steps.
  void add(const std::vector<Answer>& answers);
  /// Ends a visit, which consists of the samples since the previous call. Drops the steps that did not fill a sample,
  /// because other work follows.
  void end_of_visit();
  /// Removes the first sample of every visit that has more than one sample. Returns the number of removed samples.
  std::size_t discard_first_samples();

  [[nodiscard]] std::size_t samples() const { return ranks_.front().step.size(); }
  [[nodiscard]] const std::vector<RankSamples>& ranks() const { return ranks_; }
  [[nodiscard]] std::size_t visits() const { return visits_.size(); }
  /// Returns the samples of all ranks in one visit.
  [[nodiscard]] std::vector<RankSamples> visit(std::size_t index) const;
  /// Returns step_times() for one visit.
  [[nodiscard]] std::vector<double> step_times_of_visit(std::size_t index) const;
  /// Returns the step time of each sample: the maximum over ranks; if the ranks are coupled, the mean over ranks (see
  /// mean_over_ranks()).
  [[nodiscard]] const std::vector<double>& step_times() const { return step_times_; }
  [[nodiscard]] bool coupled() const { return coupled_; }

 private:
  [[nodiscard]] std::size_t begin_of(std::size_t visit) const;

  std::size_t steps_per_sample_;
  bool coupled_;
  std::vector<RankSamples> ranks_;               // [rank]
  std::vector<RankSamples> unfinished_samples_;  // [rank], steps that do not fill a sample yet
  std::vector<double> step_times_;
  std::vector<std::size_t> visits_;  // number of samples in each visit
};

/// The per-operation profile of the measured steps only. A TrainStep reports means over all its steps, including the
/// steps of the warm-up and of the checks. OperationLog subtracts these steps.
class OperationLog {
 public:
  /// Call begin() before the measured steps and end() after them. `profile` is the TrainStep's mean over all its steps
  /// so far, `steps` their number. Errors: HVD_ASSERT if the two profiles have different operations.
  void begin(std::vector<models::OperationProfile> profile, std::uint64_t steps);
  void end(const std::vector<models::OperationProfile>& profile, std::uint64_t steps);

  /// Returns rows in execution order, with mean seconds per measured step. Returns no rows if no steps were measured or
  /// there was no profile.
  [[nodiscard]] std::vector<OperationRow> rows() const;

 private:
  std::vector<models::OperationProfile> before_;
  std::uint64_t steps_before_ = 0;
  std::vector<OperationRow> sums_;  // seconds summed over all steps that counted
  std::uint64_t steps_ = 0;
};

}  // namespace hvd::bench
