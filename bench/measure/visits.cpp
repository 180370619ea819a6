#include "bench/measure/visits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/measure/median.h"

namespace hvd::bench {
namespace {

constexpr double kExcessThatCounts = 0.005;  // a smaller excess is hidden in the intervals and alike in all phases

std::vector<double> log_excess(const PhaseVisits& phase) {
  std::vector<double> excess;
  for (const std::vector<double>& visit : phase.visits) {
    if (visit.size() > 1) excess.push_back(std::log(visit[0] / median(std::span(visit).subspan(1))));
  }
  return excess;
}

std::string figures(std::string_view phase, const Estimate& log_excess) {
  return fmt::format("{} {:+.1f} % [{:+.1f}, {:+.1f}]", phase, 100 * std::expm1(log_excess.value),
                     100 * std::expm1(log_excess.low), 100 * std::expm1(log_excess.high));
}

}  // namespace

std::int64_t visit_samples(const VisitBudget& budget) {
  if (!(budget.sample_seconds > 0 && budget.round_seconds > 0)) return budget.shortest;
  const std::size_t missing = budget.rounds_to_aim_for - std::min(budget.rounds_to_aim_for - 1, budget.rounds_done);
  const double visit = budget.seconds_left / (static_cast<double>(missing) * budget.round_seconds);
  const double affordable = std::floor(visit - budget.unmeasured_samples);
  const double wanted = std::min(affordable, std::ceil(budget.target_seconds / budget.sample_seconds));
  // Clamp as a floating-point number, because very short samples give counts that no integer type can hold.
  return static_cast<std::int64_t>(
      std::clamp(wanted, static_cast<double>(budget.shortest), static_cast<double>(budget.longest)));
}

FirstStepVerdict judge_first_steps(std::span<const PhaseVisits> phases, std::uint64_t seed) {
  FirstStepVerdict verdict;
  std::string seen;
  std::size_t fewest = 0;
  for (const PhaseVisits& phase : phases) {
    const std::vector<double> excess = log_excess(phase);
    if (excess.size() < kVisitsToJudge) return {};
    fewest = fewest == 0 ? excess.size() : std::min(fewest, excess.size());
    const Estimate typical = median_interval(excess, {.seed = seed});
    verdict.discard = verdict.discard || (typical.low > 0 && std::expm1(typical.value) >= kExcessThatCounts);
    seen += (seen.empty() ? "" : ", ") + figures(phase.phase, typical);
  }
  verdict.text =
      fmt::format("{} than the others of their visits: {} ({} visits of each phase)",
                  verdict.discard ? "discarded: they take longer" : "kept: not seen to take longer", seen, fewest);
  return verdict;
}

}  // namespace hvd::bench
