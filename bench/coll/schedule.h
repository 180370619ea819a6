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

/// One sample to take: `batch` operations of a cell, one after the other; all of them ScheduleRule::launches times.
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

/// `operations`: of the visit. Errors: HVD_ASSERT for an empty world.
Sample sample_of(const VisitTimes& times, std::size_t operations, std::size_t round);

struct ScheduleRule {
  StoppingRule stop;           ///< of each cell; maximum_seconds is its own time, warm-up included
  std::size_t warmup = 5;      ///< first visits of a cell that are discarded, at least
  bool may_batch = true;       ///< several operations a sample
  std::uint32_t launches = 1;  ///< a visit does its batch so often: a graph of the batch is launched so often
  bool untimed_first = false;  ///< every visit begins with an operation that is not timed
  double least_sample = 1e-3;  ///< seconds: the batch of a group grows until the samples of all its cells are as long,
                               ///< so that the clock and the ranks' arrival weigh little
  double longest_sample = 0.02;  ///< seconds: no batch may make the samples of the group's slowest cell longer
  std::uint64_t seed = 1;
};

/// Cells of a group are compared with one another. They are visited in the same rounds with the same batch, and the
/// group ends as a whole: when all of its cells have a narrow interval, or when one of them reaches a cap.
class Schedule {
 public:
  Schedule(const std::vector<Cell>& cells, const ScheduleRule& rule);
  /// The next visits, as many as take about `seconds`, at least one; none when every group has ended.
  std::vector<Visit> next(double seconds);
  /// Takes the times of a visit that next() gave.
  void add(const Visit& visit, const VisitTimes& times);

  [[nodiscard]] const ScheduleRule& rule() const { return rule_; }
  [[nodiscard]] const std::vector<Sample>& samples(std::size_t cell) const { return cells_[cell].samples; }
  [[nodiscard]] std::size_t batch(std::size_t cell) const { return groups_[cells_[cell].group].batch; }
  /// Operations of a sample of the cell.
  [[nodiscard]] std::size_t operations(std::size_t cell) const { return batch(cell) * rule_.launches; }
  /// Why the cell has ended ("interval narrow enough", "time cap", "iteration cap"); empty: it has not.
  [[nodiscard]] const std::string& stop_reason(std::size_t cell) const { return cells_[cell].stop_reason; }
  [[nodiscard]] std::size_t round() const { return round_; }
  /// Cells that have ended.
  [[nodiscard]] std::size_t finished() const;

 private:
  struct State {
    std::size_t group = 0;
    double shortest = 0;      ///< seconds of one operation, the least over its visits but the first
    double elapsed = 0;       ///< seconds in its visits
    double last_seconds = 0;  ///< of its last visit
    std::vector<Sample> samples;
    std::string stop_reason;
  };
  struct Group {
    std::vector<std::size_t> cells;
    std::uint32_t batch = 1;
    bool batch_is_final = false;
    std::size_t visits = 0;     ///< of each of its cells
    std::size_t waiting = 0;    ///< of its cells, in this round
    std::size_t next_look = 0;  ///< samples at which the intervals are computed again, which takes time
    bool ended = false;
  };
  void begin_round();
  void end_round(Group& group);
  void choose_batch(Group& group) const;
  void look(Group& group);

  const ScheduleRule rule_;
  std::vector<State> cells_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> waiting_;  // of this round, next one last
  std::size_t round_ = 0;
};

/// Sample::seconds, in order.
std::vector<double> seconds_of(const std::vector<Sample>& samples);

/// median_interval() with as many resamples as a sweep of many cells can afford: 5 of 200 lie outside at each end.
Estimate quick_interval(const std::vector<double>& values);

}  // namespace hvd::bench::coll
