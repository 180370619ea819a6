#include "bench/coll/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "bench/measure/median.h"
#include "bench/measure/resample.h"
#include "engine/base/assert.h"

namespace hvd::bench::coll {
namespace {

constexpr std::uint32_t kBatchGrowth = 4;
constexpr double kNanosecond = 1e-9;
constexpr std::string_view kNarrowEnough = "interval narrow enough";  // one of the texts that reason_to_stop() returns
/// Visits to a group before its batch may grow. The first visit has cold caches, and one of the other visits may be
/// disturbed.
constexpr std::size_t kVisitsBeforeBatch = 3;

}  // namespace

Sample sample_of(const VisitTimes& times, std::size_t operations, std::size_t round) {
  HVD_ASSERT(!times.begin.empty() && times.begin.size() == times.end.size());
  std::int64_t slowest = 0;
  for (std::size_t r = 0; r < times.begin.size(); ++r) slowest = std::max(slowest, times.end[r] - times.begin[r]);
  const auto last = std::max_element(times.begin.begin(), times.begin.end());
  const std::int64_t first = *std::min_element(times.begin.begin(), times.begin.end());
  const std::int64_t end = *std::max_element(times.end.begin(), times.end.end());
  const double per_operation = kNanosecond / static_cast<double>(operations);
  return {.round = round,
          .seconds = static_cast<double>(slowest) * per_operation,
          .transfer = static_cast<double>(std::max<std::int64_t>(0, end - *last)) * per_operation,
          .skew = static_cast<double>(*last - first) * kNanosecond,
          .last_rank = static_cast<int>(last - times.begin.begin())};
}

Schedule::Schedule(const std::vector<Cell>& cells, const ScheduleRule& rule) : rule_(rule), cells_(cells.size()) {
  for (std::size_t cell = 0; cell < cells.size(); ++cell) {
    cells_[cell].group = cells[cell].group;
    if (cells[cell].group >= groups_.size()) groups_.resize(cells[cell].group + 1);
    groups_[cells[cell].group].cells.push_back(cell);
  }
  for (Group& group : groups_) {
    group.batch_is_final = !rule.may_batch;
    group.next_look = rule.stop.minimum_samples;
  }
}

void Schedule::begin_round() {
  for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
    Group& group = groups_[cells_[cell].group];
    if (group.ended) continue;
    waiting_.push_back(static_cast<std::uint32_t>(cell));
    ++group.waiting;
  }
  Draws draws(rule_.seed, round_);
  for (std::size_t i = waiting_.size(); i > 1; --i) std::swap(waiting_[i - 1], waiting_[draws.below(i)]);
  ++round_;
}

std::vector<Visit> Schedule::next(double seconds) {
  if (waiting_.empty()) begin_round();
  std::vector<Visit> visits;
  for (double planned = 0; !waiting_.empty();) {
    const State& state = cells_[waiting_.back()];
    const Group& group = groups_[state.group];
    planned += state.last_seconds;
    // The duration of a cell's first visit is unknown, so next() never returns this visit after others.
    if (!visits.empty() && (planned > seconds || group.visits == 0)) break;
    visits.push_back({waiting_.back(), group.batch});
    waiting_.pop_back();
  }
  return visits;
}

void Schedule::add(const Visit& visit, const VisitTimes& times) {
  State& state = cells_[visit.cell];
  Group& group = groups_[state.group];
  const std::size_t operations = std::size_t{visit.batch} * rule_.launches;
  const Sample sample = sample_of(times, operations, round_);
  state.last_seconds = sample.seconds * static_cast<double>(operations + (rule_.untimed_first ? 1 : 0)) + sample.skew;
  state.elapsed += state.last_seconds;
  if (group.visits > 0) state.shortest = group.visits > 1 ? std::min(state.shortest, sample.seconds) : sample.seconds;
  if (group.batch_is_final && group.visits >= rule_.warmup) state.samples.push_back(sample);
  HVD_ASSERT(group.waiting > 0);
  if (--group.waiting == 0) end_round(group);
}

void Schedule::end_round(Group& group) {
  ++group.visits;
  if (!group.batch_is_final) {
    if (group.visits >= kVisitsBeforeBatch) choose_batch(group);
  } else {
    look(group);
  }
}

void Schedule::choose_batch(Group& group) const {
  double shortest = std::numeric_limits<double>::infinity();
  double longest = 0;
  for (const std::size_t cell : group.cells) {
    shortest = std::min(shortest, cells_[cell].shortest);
    longest = std::max(longest, cells_[cell].shortest);
  }
  // A sample must be so short that the minimum number of samples takes at most half of maximum_seconds.
  const double cap = rule_.stop.maximum_seconds / static_cast<double>(2 * rule_.stop.minimum_samples);
  const std::uint32_t larger = group.batch * kBatchGrowth;
  const double launches = rule_.launches;
  const bool grows = larger <= rule_.max_batch && shortest * launches * group.batch < rule_.least_sample &&
                     longest * launches * larger <= std::min(rule_.longest_sample, cap);
  if (grows) group.batch = larger;
  group.batch_is_final = !grows;
}

/// Ends the group if all of its cells have enough samples, or if one cell reached a limit. All cells of a group have
/// the same number of samples.
void Schedule::look(Group& group) {
  const std::size_t count = cells_[group.cells.front()].samples.size();
  const bool due = count >= group.next_look;
  if (due) group.next_look = count + std::max<std::size_t>(1, count / 4);
  bool all_narrow = true;
  std::string cap;
  std::vector<bool> narrow;
  for (const std::size_t cell : group.cells) {
    const State& state = cells_[cell];
    MeasurementState measured{.samples = count,
                              .rounds = count,
                              .half_width = std::numeric_limits<double>::infinity(),
                              .elapsed_seconds = state.elapsed,
                              .next_seconds = state.last_seconds};
    if (due) {
      const Estimate estimate = quick_interval(seconds_of(state.samples));
      if (estimate.has_interval()) measured.half_width = relative_half_width(estimate);
    }
    const std::string reason = reason_to_stop(rule_.stop, measured).value_or("");
    narrow.push_back(reason == kNarrowEnough);
    all_narrow = all_narrow && narrow.back();
    if (!narrow.back() && !reason.empty()) cap = reason;
  }
  if (!all_narrow && cap.empty()) return;
  group.ended = true;
  for (std::size_t i = 0; i < group.cells.size(); ++i) {
    cells_[group.cells[i]].stop_reason = narrow[i] ? std::string(kNarrowEnough) : cap;
  }
}

std::size_t Schedule::finished() const {
  return static_cast<std::size_t>(
      std::count_if(cells_.begin(), cells_.end(), [](const State& state) { return !state.stop_reason.empty(); }));
}

std::vector<double> seconds_of(const std::vector<Sample>& samples) {
  std::vector<double> seconds;
  seconds.reserve(samples.size());
  for (const Sample& sample : samples) seconds.push_back(sample.seconds);
  return seconds;
}

Estimate quick_interval(const std::vector<double>& values) {
  return median_interval(values, {.resamples = kStoredReplicates});
}

}  // namespace hvd::bench::coll
