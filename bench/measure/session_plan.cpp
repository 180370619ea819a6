#include "bench/measure/session_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "bench/measure/median.h"
#include "bench/measure/units.h"

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

constexpr double kPhases = 3;
// Heights and widths at which networks are usually trained. Each is a multiple of 32, the stride of the networks.
constexpr std::array<std::int64_t, 8> kImageSizes{256, 224, 192, 160, 128, 96, 64, 32};
// A few warm-up steps give an uncertain interval, so the plan has this many times the samples that it asks for.
constexpr double kSafety = 1.5;
// A smaller batch shortens a step by less than its share, because update and reduction take as long as before.
constexpr double kMargin = 0.9;
constexpr double kMaxRounds = 1e6;

std::size_t whole(double rounds) { return static_cast<std::size_t>(std::clamp(std::floor(rounds), 0.0, kMaxRounds)); }

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

SessionPlan plan_rounds(const SessionPace& pace) {
  SessionPlan plan;
  plan.samples_per_visit = pace.samples_per_visit;
  if (!(pace.step_seconds > 0)) return plan;
  const auto samples = static_cast<double>(pace.samples_per_visit);
  const double sample = kPhases * pace.step_seconds * static_cast<double>(pace.steps_per_sample);
  const double round = samples * sample + kPhases * pace.step_seconds * static_cast<double>(pace.unmeasured_steps);
  plan.rounds_that_fit = whole(pace.seconds_left / round);
  double extra = 0;
  if (pace.judges_first_steps && pace.samples_per_visit == 1 && plan.rounds_that_fit >= kVisitsToJudge + kMinRounds)
    extra = static_cast<double>(kVisitsToJudge) * sample;
  const std::size_t most = std::max<std::size_t>(1, whole((pace.seconds_left - extra) / round));
  std::size_t wanted = std::max({pace.rounds_to_aim_for, whole((pace.seconds_to_aim_for - extra) / round),
                                 whole(std::ceil(kSafety * pace.samples_needed / samples))});
  if (pace.exact_samples) wanted = whole(std::ceil(static_cast<double>(*pace.exact_samples) / samples));
  plan.limited = wanted >= most;
  plan.rounds = std::min(wanted, most);
  plan.seconds = static_cast<double>(plan.rounds) * round + extra;
  return plan;
}

std::string seconds_text(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.3g} ms", 1e3 * seconds);
  return seconds < 1 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.1f} s", seconds);
}

std::string plan_line(const SessionPlan& plan, double step_seconds, std::int64_t steps_per_sample) {
  const auto count = [](auto n, const char* noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); };
  return fmt::format("{} of 3 phases, {} a visit, {} a step: about {}", count(plan.rounds, "round"),
                     count(plan.samples_per_visit * steps_per_sample, "step"), seconds_text(step_seconds),
                     plan.seconds < 10 ? seconds_text(plan.seconds) : duration_text(plan.seconds));
}

double ShortestSession::seconds(double step_seconds) const { return step_seconds * steps(kMinRounds); }

double ShortestSession::longest_step(double seconds) const { return seconds / steps(kMinRounds); }

double ShortestSession::steps(std::size_t rounds) const {
  return static_cast<double>(steps_before) +
         kPhases * static_cast<double>(rounds) * static_cast<double>(steps_per_visit);
}

std::size_t ShortestSession::rounds(double step_seconds, double seconds) const {
  return whole(seconds / (step_seconds * kPhases * static_cast<double>(steps_per_visit)));
}

void promise(StoppingRule& rule, const SessionPlan& plan, double elapsed_seconds) {
  if (rule.exact_samples) return;  // the samples end the session, however long they take
  rule.earliest_seconds = elapsed_seconds + (1 - kPromiseKept) * plan.seconds;
  if (plan.limited) return;  // the time cap ends the session
  rule.planned_seconds = elapsed_seconds + plan.seconds;
  rule.latest_seconds = elapsed_seconds + (1 + kPromiseKept) * plan.seconds;
}

std::optional<WorkSize> work_that_fits(WorkSize tried, double step_seconds, double longest_step,
                                       std::int64_t smallest_image) {
  if (step_seconds <= longest_step) return tried;
  longest_step *= kMargin;
  const double image_seconds = step_seconds / static_cast<double>(tried.batch);
  const auto batch = static_cast<std::int64_t>(longest_step / image_seconds);
  if (batch >= 1) return WorkSize{std::min(batch, tried.batch), tried.image};
  for (const std::int64_t image : kImageSizes) {
    if (image >= tried.image || image < smallest_image) continue;
    const double shrunk = static_cast<double>(image) / static_cast<double>(tried.image);
    if (image_seconds * shrunk * shrunk <= longest_step) return WorkSize{1, image};
  }
  return std::nullopt;
}

WorkSize smallest_work(WorkSize tried, std::int64_t smallest_image) {
  WorkSize smallest{1, tried.image};
  for (const std::int64_t image : kImageSizes) {
    if (image < tried.image && image >= smallest_image) smallest.image = image;
  }
  return smallest;
}

std::string size_options(WorkSize size, WorkSize tried) {
  std::string text = fmt::format("--batch-size {}", size.batch);
  if (size.image != tried.image) text += fmt::format(" --image-size {}", size.image);
  return text;
}

}  // namespace hvd::bench
