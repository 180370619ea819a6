// Decides on rank 0 which cell to sample next and when a cell has enough samples. Cells are visited in rounds. Each
// round has a different random order, so that a drift of the machine affects all cells equally. Pure: no clock, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/coll/cells.h"
#include "bench/measure/stopping_rule.h"

namespace hvd::bench::coll {

/// One sample to take: a batch of `batch` successive operations of a cell, repeated ScheduleRule::launches times.
struct Visit {
  std::uint32_t cell = 0;
  std::uint32_t batch = 1;
};

/// The times at which the ranks began and ended a visit, in nanoseconds of one clock, [rank].
struct VisitTimes {
  std::vector<std::int64_t> begin, end;
};

/// The result of a visit. Times are in seconds.
struct Sample {
  std::size_t round = 0;
  double seconds = 0;   ///< per operation: the slowest rank's time, divided by the number of operations
  double transfer = 0;  ///< per operation: time from the last rank's arrival to the last rank's end
  double skew = 0;      ///< whole sample: time from the first rank's arrival to the last rank's arrival
  int last_rank = 0;    ///< the rank that arrived last
};

/// Computes the sample of a visit with `operations` operations. Errors: HVD_ASSERT if there are no ranks.
Sample sample_of(const VisitTimes& times, std::size_t operations, std::size_t round);

struct ScheduleRule {
  StoppingRule stop;       ///< limits of each cell; maximum_seconds includes the cell's warm-up
  std::size_t warmup = 5;  ///< at least this many first visits of a cell are discarded
  bool may_batch = true;   ///< a sample may have several operations
  std::uint32_t max_batch = 4096;
  std::uint32_t launches = 1;    ///< number of times that a visit repeats its batch, by launching its graph
  bool untimed_first = false;    ///< every visit begins with an operation that is not timed
  double least_sample = 1e-3;    ///< seconds; the batch of a group grows until no cell's sample is shorter than this,
                                 ///< so that errors of the clock and the ranks' arrival times matter little
  double longest_sample = 0.02;  ///< seconds; the batch does not grow if a cell's samples would become longer than this
  std::uint64_t seed = 1;
};

/// Cells of one group are compared with one another, so all of them are visited in the same rounds with the same batch.
/// The whole group ends when all of its cells have a narrow interval, or when one of them reaches a limit.
class Schedule {
 public:
  Schedule(const std::vector<Cell>& cells, const ScheduleRule& rule);
  /// Returns the next visits: as many as take about `seconds`, and at least one. Returns none if every group has ended.
  std::vector<Visit> next(double seconds);
  /// Adds the times of a visit that next() returned.
  void add(const Visit& visit, const VisitTimes& times);

  [[nodiscard]] const ScheduleRule& rule() const { return rule_; }
  [[nodiscard]] const std::vector<Sample>& samples(std::size_t cell) const { return cells_[cell].samples; }
  [[nodiscard]] std::size_t batch(std::size_t cell) const { return groups_[cells_[cell].group].batch; }
  /// Number of operations in a sample of the cell.
  [[nodiscard]] std::size_t operations(std::size_t cell) const { return batch(cell) * rule_.launches; }
  /// Returns why the cell has ended ("interval narrow enough", "time cap", "iteration cap"); empty if it has not ended.
  [[nodiscard]] const std::string& stop_reason(std::size_t cell) const { return cells_[cell].stop_reason; }
  [[nodiscard]] std::size_t round() const { return round_; }
  /// Number of cells that have ended.
  [[nodiscard]] std::size_t finished() const;

 private:
  struct State {
    std::size_t group = 0;
    double shortest = 0;      ///< seconds of one operation, minimum over all visits except the first
    double elapsed = 0;       ///< seconds of all visits
    double last_seconds = 0;  ///< seconds of the last visit
    std::vector<Sample> samples;
    std::string stop_reason;
  };
  struct Group {
    std::vector<std::size_t> cells;
    std::uint32_t batch = 1;
    bool batch_is_final = false;
    std::size_t visits = 0;     ///< number of visits that each of the group's cells has had
    std::size_t waiting = 0;    ///< number of the group's cells that are still to be visited in this round
    std::size_t next_look = 0;  ///< number of samples at which look() computes the intervals again
    bool ended = false;
  };
  void begin_round();
  void end_round(Group& group);
  void choose_batch(Group& group) const;
  void look(Group& group);

  const ScheduleRule rule_;
  std::vector<State> cells_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> waiting_;  // cells still to be visited in this round; the next one is the last element
  std::size_t round_ = 0;
};

std::vector<double> seconds_of(const std::vector<Sample>& samples);

/// Returns median_interval() with only 200 resamples, because a sweep has many cells. Five of the resamples lie beyond
/// each end of the interval.
Estimate quick_interval(const std::vector<double>& values);

}  // namespace hvd::bench::coll
