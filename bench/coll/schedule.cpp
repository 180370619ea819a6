#include "bench/coll/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "bench/measure/median.h"
#include "bench/measure/resample.h"
#include "engine/base/assert.h"

namespace hvd::bench::coll {
namespace {

constexpr std::uint32_t kLargestBatch = 4096;
constexpr std::uint32_t kBatchGrowth = 4;
constexpr double kNanosecond = 1e-9;

}  // namespace

Sample sample_of(const VisitTimes& times, std::size_t batch, std::size_t round) {
  HVD_ASSERT(!times.begin.empty() && times.begin.size() == times.end.size());
  std::int64_t slowest = 0;
  for (std::size_t r = 0; r < times.begin.size(); ++r) slowest = std::max(slowest, times.end[r] - times.begin[r]);
  const auto last = std::max_element(times.begin.begin(), times.begin.end());
  const std::int64_t first = *std::min_element(times.begin.begin(), times.begin.end());
  const std::int64_t end = *std::max_element(times.end.begin(), times.end.end());
  const double each = kNanosecond / static_cast<double>(batch);
  return {.round = round,
          .seconds = static_cast<double>(slowest) * each,
          .transfer = static_cast<double>(std::max<std::int64_t>(0, end - *last)) * each,
          .skew = static_cast<double>(*last - first) * kNanosecond,
          .last_rank = static_cast<int>(last - times.begin.begin())};
}

Schedule::Schedule(const std::vector<Cell>& cells, const ScheduleRule& rule) : rule_(rule) {
  for (const Cell& cell : cells) {
    State state;
    state.group = cell.group;
    state.next_look = rule.stop.minimum_samples;
    states_.push_back(std::move(state));
  }
}

void Schedule::begin_round() {
  std::set<std::size_t> open;
  for (const State& state : states_) {
    if (state.stop_reason.empty()) open.insert(state.group);
  }
  for (std::size_t cell = 0; cell < states_.size(); ++cell) {
    if (open.contains(states_[cell].group)) waiting_.push_back(static_cast<std::uint32_t>(cell));
  }
  Draws draws(rule_.seed, round_);
  for (std::size_t i = waiting_.size(); i > 1; --i) std::swap(waiting_[i - 1], waiting_[draws.below(i)]);
  ++round_;
}

std::vector<Visit> Schedule::next(double seconds) {
  if (waiting_.empty()) begin_round();
  std::vector<Visit> visits;
  for (double planned = 0; !waiting_.empty();) {
    const State& state = states_[waiting_.back()];
    planned += state.last_seconds;
    if (!visits.empty() && (planned > seconds || state.visits == 0)) break;  // an unknown duration goes alone
    visits.push_back({waiting_.back(), state.batch});
    waiting_.pop_back();
  }
  return visits;
}

void Schedule::add(const Visit& visit, const VisitTimes& times) {
  State& state = states_[visit.cell];
  const Sample sample = sample_of(times, visit.batch, round_);
  state.last_seconds = sample.seconds * visit.batch + sample.skew;
  state.elapsed += state.last_seconds;
  ++state.visits;
  const bool too_short = sample.seconds * visit.batch < rule_.least_sample && visit.batch < kLargestBatch;
  if (rule_.may_batch && state.samples.empty() && too_short) {
    state.batch = visit.batch * kBatchGrowth;
    return;
  }
  if (state.visits <= rule_.warmup) return;
  state.samples.push_back(sample);
  look(state);
}

void Schedule::look(State& state) const {
  if (!state.stop_reason.empty()) return;
  MeasurementState measured{.samples = state.samples.size(),
                            .rounds = state.samples.size(),
                            .half_width = std::numeric_limits<double>::infinity(),
                            .elapsed_seconds = state.elapsed,
                            .next_seconds = state.last_seconds};
  if (measured.samples >= state.next_look) {
    const Estimate estimate = quick_interval(seconds_of(state.samples));
    if (estimate.has_interval()) measured.half_width = relative_half_width(estimate);
    state.next_look = measured.samples + std::max<std::size_t>(1, measured.samples / 4);
  }
  if (auto reason = reason_to_stop(rule_.stop, measured)) state.stop_reason = std::move(*reason);
}

std::size_t Schedule::finished() const {
  return static_cast<std::size_t>(
      std::count_if(states_.begin(), states_.end(), [](const State& state) { return !state.stop_reason.empty(); }));
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
