// Which cell is sampled next, and when a cell has enough: the decisions of rank 0. Cells are visited in rounds, each
// round in another random order, so that a drift of the machine hits all cells alike. Pure: no clock, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/coll/cells.h"
#include "bench/measure/stopping_rule.h"

namespace hvd::bench::coll {

/// One sample to take: `batch` operations of a cell, one after the other.
struct Visit {
  std::uint32_t cell = 0;
  std::uint32_t batch = 1;
};

/// When the ranks began and ended a visit, nanoseconds on one clock, [rank].
struct VisitTimes {
  std::vector<std::int64_t> begin, end;
};

/// A visit after the fact. Times are seconds.
struct Sample {
  std::size_t round = 0;
  double seconds = 0;   ///< one operation: the slowest rank's time over the batch
  double transfer = 0;  ///< one operation: from the last rank's arrival to the last rank's end
  double skew = 0;      ///< from the first rank's arrival to the last rank's
  int last_rank = 0;    ///< the rank that arrived last
};

/// Errors: HVD_ASSERT for an empty world.
Sample sample_of(const VisitTimes& times, std::size_t batch, std::size_t round);

struct ScheduleRule {
  StoppingRule stop;           ///< of each cell; maximum_seconds is its own time, warm-up included
  std::size_t warmup = 5;      ///< first visits of a cell that are discarded, at least
  bool may_batch = true;       ///< several operations a sample
  double least_sample = 2e-4;  ///< seconds: shorter samples get a larger batch, so that the clock and the arrival weigh
                               ///< little
  std::uint64_t seed = 1;
};

class Schedule {
 public:
  Schedule(const std::vector<Cell>& cells, const ScheduleRule& rule);
  /// The next visits, as many as take about `seconds`, at least one; none when every cell has enough. Cells of a group
  /// go on until all of them have enough.
  std::vector<Visit> next(double seconds);
  /// What became of a visit that next() gave.
  void add(const Visit& visit, const VisitTimes& times);

  [[nodiscard]] const std::vector<Sample>& samples(std::size_t cell) const { return states_[cell].samples; }
  [[nodiscard]] std::size_t batch(std::size_t cell) const { return states_[cell].batch; }
  /// Why the cell has enough ("interval narrow enough", "time cap", "iteration cap"); empty: it has not.
  [[nodiscard]] const std::string& stop_reason(std::size_t cell) const { return states_[cell].stop_reason; }
  [[nodiscard]] std::size_t round() const { return round_; }
  [[nodiscard]] std::size_t finished() const;

 private:
  struct State {
    std::size_t group = 0;
    std::uint32_t batch = 1;
    std::size_t visits = 0;
    std::size_t next_look = 0;  ///< samples at which the interval is computed again, which takes time
    double elapsed = 0;         ///< seconds in its visits
    double last_seconds = 0;    ///< of its last visit
    std::vector<Sample> samples;
    std::string stop_reason;
  };
  void begin_round();
  void look(State& state) const;

  const ScheduleRule rule_;
  std::vector<State> states_;
  std::vector<std::uint32_t> waiting_;  // of this round, next one last
  std::size_t round_ = 0;
};

/// Sample::seconds, in order.
std::vector<double> seconds_of(const std::vector<Sample>& samples);

/// median_interval() with as many resamples as a sweep of many cells can afford: 5 of 200 lie outside at each end.
Estimate quick_interval(const std::vector<double>& values);

}  // namespace hvd::bench::coll
