#include "bench/session/round_plan.h"

#include <algorithm>
#include <cmath>

namespace hvd::bench {
namespace {

constexpr double kGpuVisitSeconds = 1.0;
constexpr double kCpuVisitSeconds = 0.25;    // short, so that a slow spell of the host covers a whole round and cancels
constexpr double kCpuSessionSeconds = 60;    // a shared host is slow for seconds at a time, and a session must see many
constexpr std::int64_t kGpuExactRounds = 3;  // least number of rounds, if the user asks for that many samples or more
constexpr std::int64_t kMaxVisit = 100;      // samples
constexpr std::array<const char*, 3> kPhases{"solo", "none", "full"};

}  // namespace

bool RoundPlan::compares_first_steps(const Times& times) const {
  if (!judges_first_steps() || single_samples_) return false;
  if (rounds_ >= kVisitsToJudge) return verdict_.discard;
  // Visits have two samples until there are enough visits to judge first steps, and one sample afterwards. Compare
  // first steps only if all missing rounds fit into the time left.
  const auto missing = static_cast<double>(kVisitsToJudge - rounds_ + kMinRounds - rounds_);
  return times.seconds_left >= missing * times.round_seconds;
}

VisitBudget RoundPlan::budget(const Times& times, std::int64_t shortest) const {
  VisitBudget budget;
  budget.sample_seconds = times.sample_seconds;
  budget.round_seconds = times.round_seconds;
  budget.seconds_left = times.seconds_left;
  budget.rounds_done = rounds_;
  // Every visit on a GPU costs a step that is not measured, so visits stay long unless too few of them would fit.
  if (gpu_) budget.rounds_to_aim_for = kMinRounds;
  budget.unmeasured_samples = static_cast<double>(unmeasured_steps()) / static_cast<double>(steps_per_sample_);
  budget.target_seconds = gpu_ ? kGpuVisitSeconds : kCpuVisitSeconds;
  budget.shortest = shortest;
  budget.longest = kMaxVisit;
  return budget;
}

std::int64_t RoundPlan::next_visit(const Times& times) const {
  const std::int64_t shortest = gpu_ ? kGpuVisitSamples : compares_first_steps(times) ? 2 : 1;
  const std::int64_t samples = visit_samples(budget(times, shortest));
  if (!exact_samples_) return samples;
  const auto exact = static_cast<std::int64_t>(*exact_samples_);
  const std::int64_t rounds = gpu_ ? kGpuExactRounds : static_cast<std::int64_t>(kMinRounds);
  return std::min({samples, (exact + rounds - 1) / rounds, exact - static_cast<std::int64_t>(times.samples)});
}

SessionPlan RoundPlan::plan(const Times& times, double samples_needed) const {
  // While first steps are compared, visits have two samples although one would be enough.
  const std::int64_t shortest = judges_first_steps() ? 1 : shortest_visit();
  SessionPace pace;
  pace.step_seconds = times.round_seconds / 3 / static_cast<double>(steps_per_sample_);
  pace.steps_per_sample = steps_per_sample_;
  pace.seconds_left = times.seconds_left;
  pace.samples_needed = samples_needed;
  pace.unmeasured_steps = unmeasured_steps();
  pace.samples_per_visit = visit_samples(budget(times, shortest));
  pace.judges_first_steps = judges_first_steps();
  pace.rounds_to_aim_for = gpu_ ? kMinRounds : kRoundsToAimFor;
  pace.seconds_to_aim_for = gpu_ ? 0 : kCpuSessionSeconds;
  if (exact_samples_) {
    pace.samples_per_visit = next_visit(times);
    pace.exact_samples = static_cast<std::int64_t>(*exact_samples_);
  }
  return plan_rounds(pace);
}

ShortestSession RoundPlan::shortest_session(std::optional<int> warm_up_steps) const {
  constexpr std::int64_t kChecks = 3;  // one step for the check of the reduction, and the time of the buckets alone
  ShortestSession shortest;
  shortest.steps_per_visit = shortest_visit() * steps_per_sample_ + unmeasured_steps();
  if (warm_up_steps) shortest.steps_before = *warm_up_steps + kChecks;
  return shortest;
}

void RoundPlan::end_of_round(std::int64_t samples_per_visit, const Logs& logs) {
  ++rounds_;
  single_samples_ = single_samples_ || samples_per_visit == 1;
  if (!judges_first_steps() || single_samples_) return;
  std::vector<PhaseVisits> phases;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    phases.push_back({kPhases[i], {}});
    for (std::size_t visit = 0; visit < rounds_; ++visit) {
      phases.back().visits.push_back(logs[i]->step_times_of_visit(visit));
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
  for (std::size_t i = 0; i < rounds_; ++i) {
    rounds.push_back({logs[0]->visit(i), logs[1]->visit(i), logs[2]->visit(i), logs[2]->coupled()});
  }
  return rounds;
}

}  // namespace hvd::bench
