#include "bench/train/round_plan.h"

#include <algorithm>
#include <cmath>

namespace hvd::bench {
namespace {

constexpr double kGpuVisitSeconds = 1.0;
constexpr double kCpuVisitSeconds = 0.5;     // short, so that a slow spell of the host covers a whole round and cancels
constexpr std::int64_t kGpuExactRounds = 3;  // least number of rounds, if the user asks for that many samples or more
constexpr std::int64_t kLongestVisit = 100;  // samples
constexpr std::array<const char*, 3> kPhases{"solo", "none", "full"};

}  // namespace

bool RoundPlan::compares_first_steps(const Times& times) const {
  if (!judges_first_steps() || single_samples_) return false;
  if (rounds_ >= kVisitsToJudge) return verdict_.discard;
  // Visits have two samples until there are enough visits to judge first steps, and one sample afterwards. Compare
  // first steps only if all missing rounds fit into the time left.
  const auto missing = static_cast<double>(kVisitsToJudge - rounds_ + kFewestRounds - rounds_);
  return times.seconds_left >= missing * times.round_seconds;
}

std::int64_t RoundPlan::next_visit(const Times& times) const {
  VisitBudget budget;
  budget.sample_seconds = times.sample_seconds;
  budget.round_seconds = times.round_seconds;
  budget.seconds_left = gpu_ ? HUGE_VAL : times.seconds_left;
  budget.rounds_done = rounds_;
  budget.target_seconds = gpu_ ? kGpuVisitSeconds : kCpuVisitSeconds;
  budget.shortest = gpu_ ? kGpuVisitSamples : compares_first_steps(times) ? 2 : 1;
  budget.longest = kLongestVisit;
  const std::int64_t samples = visit_samples(budget);
  if (!exact_samples_) return samples;
  const auto exact = static_cast<std::int64_t>(*exact_samples_);
  const std::int64_t rounds = gpu_ ? kGpuExactRounds : static_cast<std::int64_t>(kFewestRounds);
  return std::min({samples, (exact + rounds - 1) / rounds, exact - static_cast<std::int64_t>(times.samples)});
}

void RoundPlan::end_of_round(std::int64_t samples_per_visit, const Logs& logs) {
  ++rounds_;
  single_samples_ = single_samples_ || samples_per_visit == 1;
  if (!judges_first_steps() || single_samples_) return;
  std::vector<PhaseVisits> phases;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    phases.push_back({kPhases[i], {}});
    for (std::size_t visit = 0; visit < rounds_; ++visit) {
      phases.back().visits.push_back(logs[i]->slowest_of_visit(visit));
    }
  }
  verdict_ = judge_first_steps(phases, seed_);
}

std::size_t RoundPlan::settle(const Logs& logs) const {
  std::size_t discarded = 0;
  if (!verdict_.discard) return discarded;
  for (PhaseLog* log : logs) discarded = log->discard_first_samples();
  return discarded;
}

std::string RoundPlan::first_steps() const {
  if (gpu_) return "discarded, as always on a GPU";
  if (exact_samples_) return "discarded, as always if a number of samples is given";
  return verdict_.text;
}

std::vector<Round> RoundPlan::measured(const Logs& logs) const {
  std::vector<Round> rounds;
  for (std::size_t i = 0; i < rounds_; ++i) rounds.push_back({logs[0]->visit(i), logs[1]->visit(i), logs[2]->visit(i)});
  return rounds;
}

}  // namespace hvd::bench
