#include "bench/session/phase_log.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

// Removes the first `count` steps from `pending` and appends their means to `into`.
void fold(RankSamples& pending, std::size_t count, RankSamples& into) {
  for (const StepSeries& series : kStepSeries) {
    std::vector<double>& from = pending.*series.of_rank;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += from[i];
    (into.*series.of_rank).push_back(sum / static_cast<double>(count));
    from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

}  // namespace

PhaseLog::PhaseLog(std::size_t ranks, int steps_per_sample, bool coupled)
    : steps_per_sample_(static_cast<std::size_t>(steps_per_sample)),
      coupled_(coupled),
      ranks_(ranks),
      unfinished_samples_(ranks) {
  HVD_ASSERT(ranks > 0 && steps_per_sample > 0);
}

void PhaseLog::add(const std::vector<Answer>& answers) {
  HVD_ASSERT(answers.size() >= ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    HVD_ASSERT(answers[r].samples.step.size() == answers[0].samples.step.size());
    append(unfinished_samples_[r], answers[r].samples);
  }
  while (unfinished_samples_[0].step.size() >= steps_per_sample_) {
    double slowest = 0;
    double sum = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      fold(unfinished_samples_[r], steps_per_sample_, ranks_[r]);
      slowest = std::max(slowest, ranks_[r].step.back());
      sum += ranks_[r].step.back();
    }
    step_times_.push_back(coupled_ ? sum / static_cast<double>(ranks_.size()) : slowest);
  }
}

void PhaseLog::end_of_visit() {
  for (RankSamples& pending : unfinished_samples_) pending = {};
  visits_.push_back(samples() - begin_of(visits_.size()));
}

std::size_t PhaseLog::begin_of(std::size_t visit) const {
  return std::accumulate(visits_.begin(), visits_.begin() + static_cast<std::ptrdiff_t>(visit), std::size_t{0});
}

std::size_t PhaseLog::discard_first_samples() {
  std::size_t discarded = 0;
  for (std::size_t visit = 0; visit < visits_.size(); ++visit) {
    if (visits_[visit] < 2) continue;
    const auto first = static_cast<std::ptrdiff_t>(begin_of(visit));
    for (RankSamples& rank : ranks_) {
      for (const StepSeries& series : kStepSeries) (rank.*series.of_rank).erase((rank.*series.of_rank).begin() + first);
    }
    step_times_.erase(step_times_.begin() + first);
    --visits_[visit];
    ++discarded;
  }
  return discarded;
}

std::vector<RankSamples> PhaseLog::visit(std::size_t index) const {
  const auto begin = static_cast<std::ptrdiff_t>(begin_of(index));
  const auto end = begin + static_cast<std::ptrdiff_t>(visits_.at(index));
  std::vector<RankSamples> out(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    for (const StepSeries& series : kStepSeries) {
      const std::vector<double>& from = ranks_[r].*series.of_rank;
      (out[r].*series.of_rank).assign(from.begin() + begin, from.begin() + end);
    }
  }
  return out;
}

std::vector<double> PhaseLog::step_times_of_visit(std::size_t index) const {
  const auto begin = step_times_.begin() + static_cast<std::ptrdiff_t>(begin_of(index));
  return {begin, begin + static_cast<std::ptrdiff_t>(visits_.at(index))};
}

void OperationLog::begin(std::vector<models::OperationProfile> profile, std::uint64_t steps) {
  before_ = std::move(profile);
  steps_before_ = steps;
}

void OperationLog::end(const std::vector<models::OperationProfile>& profile, std::uint64_t steps) {
  // A backend may have no profile before its first step.
  HVD_ASSERT(profile.size() == before_.size() || steps_before_ == 0);
  HVD_ASSERT(steps >= steps_before_);
  if (sums_.empty()) {
    for (const models::OperationProfile& operation : profile) {
      sums_.push_back({operation.node, operation.kind, operation.implementation, operation.library, 0, operation.flops,
                       operation.bytes});
    }
  }
  for (std::size_t i = 0; i < profile.size(); ++i) {
    const double before = before_.empty() ? 0 : before_[i].seconds * static_cast<double>(steps_before_);
    sums_[i].seconds += profile[i].seconds * static_cast<double>(steps) - before;
  }
  steps_ += steps - steps_before_;
}

std::vector<OperationRow> OperationLog::rows() const {
  if (steps_ == 0) return {};
  std::vector<OperationRow> rows = sums_;
  for (OperationRow& row : rows) row.seconds /= static_cast<double>(steps_);
  return rows;
}

}  // namespace hvd::bench
