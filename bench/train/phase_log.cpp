#include "bench/train/phase_log.h"

#include <algorithm>

#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

// Means of the first `count` steps of `pending`, which are taken out.
void fold(RankSamples& pending, std::size_t count, RankSamples& into) {
  for (const auto series : kSampleSeries) {
    std::vector<double>& from = pending.*series;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += from[i];
    (into.*series).push_back(sum / static_cast<double>(count));
    from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

}  // namespace

PhaseLog::PhaseLog(std::size_t ranks, int steps_per_sample)
    : steps_per_sample_(static_cast<std::size_t>(steps_per_sample)), ranks_(ranks), pending_(ranks) {
  HVD_ASSERT(ranks > 0 && steps_per_sample > 0);
}

void PhaseLog::add(const std::vector<Answer>& answers) {
  HVD_ASSERT(answers.size() >= ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    HVD_ASSERT(answers[r].samples.step.size() == answers[0].samples.step.size());
    append(pending_[r], answers[r].samples);
  }
  while (pending_[0].step.size() >= steps_per_sample_) {
    double slowest = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      fold(pending_[r], steps_per_sample_, ranks_[r]);
      slowest = std::max(slowest, ranks_[r].step.back());
    }
    slowest_.push_back(slowest);
  }
}

void PhaseLog::end_of_visit() {
  for (RankSamples& pending : pending_) pending = {};
}

std::vector<RankSamples> PhaseLog::since(std::size_t first) const {
  std::vector<RankSamples> out(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    for (const auto series : kSampleSeries) {
      const std::vector<double>& from = ranks_[r].*series;
      (out[r].*series).assign(from.begin() + static_cast<std::ptrdiff_t>(first), from.end());
    }
  }
  return out;
}

}  // namespace hvd::bench
