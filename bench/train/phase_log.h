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
  /// Steps that did not fill a sample are dropped: other work comes next. The samples since the last call are a visit.
  void end_of_visit();
  /// Takes the first sample out of every visit that has others. Returns how many that were.
  std::size_t discard_first_samples();

  [[nodiscard]] std::size_t samples() const { return ranks_.front().step.size(); }
  [[nodiscard]] const std::vector<RankSamples>& ranks() const { return ranks_; }
  [[nodiscard]] std::size_t visits() const { return visits_.size(); }
  /// All ranks' samples of one visit.
  [[nodiscard]] std::vector<RankSamples> visit(std::size_t index) const;
  /// As slowest(), of one visit.
  [[nodiscard]] std::vector<double> slowest_of_visit(std::size_t index) const;
  /// Step times, maximum over ranks, sample by sample.
  [[nodiscard]] const std::vector<double>& slowest() const { return slowest_; }

 private:
  [[nodiscard]] std::size_t begin_of(std::size_t visit) const;

  std::size_t steps_per_sample_;
  std::vector<RankSamples> ranks_;    // [rank]
  std::vector<RankSamples> pending_;  // [rank], steps of an unfinished sample
  std::vector<double> slowest_;
  std::vector<std::size_t> visits_;  // samples of each
};

}  // namespace hvd::bench
