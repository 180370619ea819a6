// The samples of one phase as they come in, segment by segment, from all ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/run_record.h"
#include "bench/train/message.h"

namespace hvd::bench {

class PhaseLog {
 public:
  /// `ranks` take part in the phase; a sample is the mean of `steps_per_sample` consecutive steps.
  PhaseLog(std::size_t ranks, int steps_per_sample);

  /// Appends what ranks 0 .. ranks-1 measured; all of the same length.
  void add(const std::vector<Answer>& answers);
  /// Steps that did not fill a sample are dropped: other work comes next.
  void end_of_visit();

  [[nodiscard]] std::size_t samples() const { return ranks_.front().step.size(); }
  [[nodiscard]] const std::vector<RankSamples>& ranks() const { return ranks_; }
  /// Samples from `first` on.
  [[nodiscard]] std::vector<RankSamples> since(std::size_t first) const;
  /// Step times, maximum over ranks, sample by sample.
  [[nodiscard]] const std::vector<double>& slowest() const { return slowest_; }

 private:
  std::size_t steps_per_sample_;
  std::vector<RankSamples> ranks_;    // [rank]
  std::vector<RankSamples> pending_;  // [rank], steps of an unfinished sample
  std::vector<double> slowest_;
};

}  // namespace hvd::bench
