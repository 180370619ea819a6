// Makes records of a session's runs: while they grow, when they are complete, and when the session fails.
#include <algorithm>
#include <chrono>
#include <utility>

#include "bench/session/session_leader.h"
#include "bench/store/result_store.h"

namespace hvd::bench {
namespace {

constexpr auto kSaveEvery = std::chrono::seconds(5);

}  // namespace

void SessionLeader::settle_rounds() {
  const auto discarded = static_cast<std::int64_t>(rounds_.settle(logs()));
  findings_.first_steps = rounds_.first_steps();
  findings_.rounds = rounds_.rounds();
  findings_.efficiency = analyse_efficiency(rounds_.measured(logs()), {.seed = setup_.seed});
  RunRecord& full = phase_runs_.back().record;
  full.decomposition = findings_.efficiency->rows;
  full.efficiency_replicates = findings_.efficiency->efficiency_replicates;
  for (PhaseRun& phase_run : phase_runs_) {
    phase_run.record.warmup_steps += discarded * options_.num_batches_per_iter;
    phase_run.record.provenance["measurement.rounds"] = {std::to_string(findings_.rounds), false};
    phase_run.record.provenance["measurement.first_steps"] = {findings_.first_steps, false};
  }
}

void SessionLeader::complete(const std::string& stop_reason) {
  if (setup_.interleaved) settle_rounds();
  for (PhaseRun& phase_run : phase_runs_) {
    RunRecord& run = phase_run.record;
    fill(phase_run);
    run.operations = phase_run.operations.rows();
    run.status = RunStatus::kComplete;
    run.stop_reason = stop_reason;
    run.finished_utc = utc_now();
  }
  if (!rule_.exact_samples) findings_.target_half_width = rule_.target_half_width;
  // Use the ready times of phase none if it was measured: its ranks compute at the same time, but do not reduce.
  const PhaseRun& undisturbed = phase_runs_.size() > 1 ? phase_runs_[1] : phase_runs_.front();
  if (undisturbed.log.samples() > 0) findings_.ready = undisturbed.recorder->profile();
  for (PhaseRun& phase_run : phase_runs_) save(phase_run);
}

void SessionLeader::give_up(const Error& error) {
  if (!started_) return;
  for (PhaseRun& phase_run : phase_runs_) {
    fill(phase_run);
    mark_incomplete(phase_run.record, error, trainer_.engine());
    try {
      save(phase_run);
    } catch (const std::exception&) {
      // Ignore this error and report `error`. The store keeps what was saved before.
    }
  }
}

// Only the phase that changes the weights has a loss: full, or none in a session without full. A replay has no loss.
bool SessionLeader::has_loss(const PhaseRun& phase_run) const {
  return !setup_.replay && phase_run.phase == setup_.main_phase();
}

void SessionLeader::fill(PhaseRun& phase_run) {
  fill_samples(phase_run.record, phase_run.log);
  if (!has_loss(phase_run)) phase_run.record.final_loss.reset();
}

void SessionLeader::save(PhaseRun& phase_run) {
  // All phases use the weights of the phase that trains, so a collapsed loss affects each of them.
  if (std::string caution = loss_.caution(); !caution.empty()) {
    add_caution(phase_run.record.provenance, "collapsed_loss", std::move(caution));
  }
  if (observer_.save) observer_.save(phase_run.record);
}

void SessionLeader::save_if_due() {
  if (Clock::now() - last_save_ < std::max<std::chrono::nanoseconds>(kSaveEvery, save_pause_)) return;
  const auto begin = Clock::now();
  for (PhaseRun& phase_run : phase_runs_) {
    fill(phase_run);
    save(phase_run);
  }
  last_save_ = Clock::now();
  save_pause_ = 20 * (last_save_ - begin);  // saving takes at most 5 % of the time, even on a slow disk
}

}  // namespace hvd::bench
