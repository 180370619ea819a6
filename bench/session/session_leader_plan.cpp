// Plans the rounds of an interleaved session from its first steps, and says so before the first round.
#include <cmath>

#include "bench/measure/median.h"
#include "bench/session/session_leader.h"
#include "bench/session/work_size.h"

namespace hvd::bench {

void SessionLeader::tell(const std::string& line) const {
  if (observer_.tell) observer_.tell(line);
}

void SessionLeader::require_rounds(double step_seconds, bool settled) {
  if (room_checked_ || !setup_.interleaved || rule_.exact_samples || !(step_seconds > 0)) return;
  room_checked_ = true;
  const ShortestSession shortest = rounds_.shortest_session(options_.num_warmup_batches);
  const double cap = rule_.maximum_seconds;
  if (step_seconds <= shortest.longest_step(cap)) return;
  const std::string advice = room_advice(setup_, shortest, step_seconds, cap, options_.fit);
  if (settled && shortest.rounds(step_seconds, cap - elapsed()) < kMinForInterval) {
    throw Error(Errc::kInconclusive, "too few rounds would fit for an interval: " + advice);
  }
  tell("  caution    " + advice);
}

void SessionLeader::plan_rounds() {
  PhaseRun& full = phase_runs_.back();
  std::vector<double> steps = last_warm_up_steps_;
  // The first step of all takes longer. It is among the last ones only if the warm-up was very short.
  if (steps.size() > 1 && steps.size() == static_cast<std::size_t>(warm_up_steps_)) steps.erase(steps.begin());
  if (steps.empty()) return;  // without a warm-up nothing is known yet
  full.step_seconds = median(steps);
  const double half_width = relative_half_width(median_interval(steps, {.seed = setup_.seed}));
  const double wider = half_width / rule_.target_half_width;
  const auto per_sample = static_cast<double>(options_.num_batches_per_iter);
  const double needed = static_cast<double>(steps.size()) / per_sample * wider * wider;
  const RoundPlan::Times times{.sample_seconds = full.step_seconds * per_sample,
                               .round_seconds = round_step_seconds() * per_sample,
                               .seconds_left = rule_.maximum_seconds - elapsed()};
  const SessionPlan plan = rounds_.plan(times, needed);
  tell("  plan       " + plan_line(plan, full.step_seconds, options_.num_batches_per_iter));
  promise(rule_, plan, elapsed());
}

}  // namespace hvd::bench
