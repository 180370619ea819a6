#include "bench/session/session_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "bench/measure/median.h"
#include "bench/session/records.h"
#include "bench/store/result_store.h"
#include "engine/base/json.h"

namespace hvd::bench {
namespace {

constexpr double kCollapsed = 1e-3;  // fraction of the first step's loss

std::string loss_text(double value) {
  if (std::isnan(value)) return "nan";  // fmt::format() would also print the sign
  return fmt::format("{:.4g}", value);
}

constexpr auto kSaveEvery = std::chrono::seconds(5);

std::vector<Phase> phases_of(const Setup& setup) {
  if (setup.efficiency) return {Phase::kSolo, Phase::kNone, Phase::kFull};
  return {setup.main_phase()};
}

}  // namespace

void LossWatch::add(const std::vector<Answer>& answers, std::uint64_t first_step) {
  const std::size_t steps = answers.empty() ? 0 : answers.front().samples.loss.size();
  for (std::size_t i = 0; i < steps; ++i) {
    const std::uint64_t step = first_step + i;
    double sum = 0, ranks = 0;
    for (std::size_t r = 0; r < answers.size(); ++r) {
      if (i >= answers[r].samples.loss.size()) continue;
      const double loss = answers[r].samples.loss[i];
      if (!std::isfinite(loss) && !failed()) {
        problem_ = fmt::format(
            "the loss of rank {} was {} in training step {}{}: training has diverged, so nothing more was measured; "
            "lower --learning-rate",
            r, loss_text(loss), step, first_ ? fmt::format(", and {} in the first", loss_text(*first_)) : "");
      }
      sum += loss;
      ++ranks;
    }
    const double mean = sum / ranks;
    if (!first_ || mean < lowest_) {
      lowest_ = mean;
      lowest_at_ = step;
    }
    if (!first_) first_ = mean;
  }
}

std::string LossWatch::caution() const {
  if (!first_ || !(lowest_ < kCollapsed * *first_)) return {};
  return fmt::format(
      "the loss has collapsed, from {} to {} in training step {}: the network has memorised its labels, and with "
      "vanishing gradients its steps may be faster than real ones; leave out --labels cycled, or lower --learning-rate",
      loss_text(*first_), loss_text(lowest_), lowest_at_);
}

// Computing the interval costs some time, so the interval is computed again only when there are 5 % more samples than
// at the last computation.
void PhaseRun::judge(std::uint64_t seed) {
  const std::size_t samples = log.samples();
  if (samples == 0 || (judged_at > 0 && samples < judged_at + 1 + judged_at / 20)) return;
  half_width = relative_half_width(median_interval(log.step_times(), {.seed = seed}));
  judged_at = samples;
}

SessionRuns::SessionRuns(const SessionParts& session) : session_(session) {
  const Setup& setup = session.setup;
  for (const Phase phase : phases_of(setup)) {
    const std::size_t ranks = phase == Phase::kSolo ? 1 : static_cast<std::size_t>(session.trainer.engine().size());
    // Without launching ahead, ranks begin a step at different times, so their steps have no common length.
    const bool coupled = phase == Phase::kFull && session.facts.graphs && setup.gpu.schedule.ahead;
    phases_.emplace_back(phase, ranks, session.options.num_batches_per_iter, coupled);
    // Only the phase that changes the weights has a loss: full, or none in a session without full. A replay has none.
    phases_.back().has_loss = !setup.replay && phase == setup.main_phase();
  }
}

void SessionRuns::begin() {
  begun_ = true;
  for (PhaseRun& phase_run : phases_) save(phase_run);
  last_save_ = Clock::now();
}

void SessionRuns::complete(const std::string& stop_reason) {
  for (PhaseRun& phase_run : phases_) {
    RunRecord& run = phase_run.record;
    fill(phase_run);
    run.operations = phase_run.operations.rows();
    run.status = RunStatus::kComplete;
    run.stop_reason = stop_reason;
    if (phase_run.cycles > 0) {
      const double per_step = static_cast<double>(phase_run.cycles) / static_cast<double>(phase_run.steps);
      run.provenance["engine.cycles"] = {json_number(per_step), false};
    }
    run.finished_utc = utc_now();
  }
  for (PhaseRun& phase_run : phases_) save(phase_run);
}

void SessionRuns::give_up(const Error& error) {
  if (!begun_) return;
  for (PhaseRun& phase_run : phases_) {
    fill(phase_run);
    mark_incomplete(phase_run.record, error, session_.trainer.engine());
    try {
      save(phase_run);
    } catch (const std::exception&) {
      // Ignore this error and report `error`. The store keeps what was saved before.
    }
  }
}

std::vector<RunRecord> SessionRuns::take_records() {
  std::vector<RunRecord> records;
  for (PhaseRun& phase_run : phases_) records.push_back(std::move(phase_run.record));
  return records;
}

void SessionRuns::follow_loss(const PhaseRun& phase_run, const std::vector<Answer>& answers) {
  if (!phase_run.has_loss) return;
  const std::size_t steps = answers.front().samples.loss.size();
  loss_.add(answers, session_.trainer.steps_done() - steps + 1);
  if (begun_) require_finite_loss();
}

void SessionRuns::require_finite_loss() {
  if (!loss_.failed()) return;
  std::string& checks = main_run().record.checks;
  if (!checks.empty()) checks += "; ";
  checks += "failed: " + loss_.problem();
  throw Error(Errc::kCheckFailed, loss_.problem());
}

void SessionRuns::fill(PhaseRun& phase_run) {
  fill_samples(phase_run.record, phase_run.log);
  if (!phase_run.has_loss) phase_run.record.final_loss.reset();
}

void SessionRuns::save(PhaseRun& phase_run) {
  // All phases use the weights of the phase that trains, so a collapsed loss affects each of them.
  add_caution(phase_run.record.provenance, "collapsed_loss", loss_.caution());
  if (session_.observer.save) session_.observer.save(phase_run.record);
}

void SessionRuns::save_if_due() {
  if (Clock::now() - last_save_ < std::max<std::chrono::nanoseconds>(kSaveEvery, save_pause_)) return;
  const auto begin = Clock::now();
  for (PhaseRun& phase_run : phases_) {
    fill(phase_run);
    save(phase_run);
  }
  last_save_ = Clock::now();
  save_pause_ = 20 * (last_save_ - begin);  // saving takes at most 5 % of the time, even on a slow disk
}

}  // namespace hvd::bench
