// Collects the samples of one phase from all ranks, segment by segment.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/session/message.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

class PhaseLog {
 public:
  /// `ranks` ranks take part in the phase. A sample is the mean of `steps_per_sample` consecutive steps.
  PhaseLog(std::size_t ranks, int steps_per_sample);

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
  /// Returns slowest() for one visit.
  [[nodiscard]] std::vector<double> slowest_of_visit(std::size_t index) const;
  /// Returns the step time of each sample, the maximum over ranks.
  [[nodiscard]] const std::vector<double>& slowest() const { return slowest_; }

 private:
  [[nodiscard]] std::size_t begin_of(std::size_t visit) const;

  std::size_t steps_per_sample_;
  std::vector<RankSamples> ranks_;               // [rank]
  std::vector<RankSamples> unfinished_samples_;  // [rank], steps that do not fill a sample yet
  std::vector<double> slowest_;
  std::vector<std::size_t> visits_;  // number of samples in each visit
};

}  // namespace hvd::bench
