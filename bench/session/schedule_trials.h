// Runs the search for the fastest schedule; schedule_search.h decides which settings are tried. Every rank trains a few
// steps with the setting that rank 0 sends, and the slowest rank's times count. Each rank's training thread calls these
// functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/session/rank_parts.h"
#include "bench/session/session.h"
#include "bench/store/run_record.h"
#include "bench/train/trainer.h"
#include "bench/tune/schedule_memory.h"
#include "bench/tune/schedule_search.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

struct ScheduleChoice {
  ScheduleSetting setting;         ///< set on all ranks
  Provenance provenance;           ///< set on rank 0: gpu.schedule.*, the settings chosen and tried
  std::vector<std::string> notes;  ///< set on rank 0: lines about the choice
};

/// The functions of a rank that the search calls. All except time_steps may be null.
struct TrialBench {
  /// Trains with `setting` until step times have settled, then takes `steps` more steps and returns their seconds.
  std::function<std::vector<double>(const ScheduleSetting& setting, std::int64_t steps)> time_steps;
  /// Called on rank 0 after a visit. `step_seconds`: the slowest rank's median step time in that
  /// visit. `seconds_left`: upper limit of the time until the search ends.
  std::function<void(double step_seconds, double seconds_left)> progress;
  std::function<std::string()> stop_requested;
  /// The search begins no knob after this many seconds; 0: no limit.
  double limit_seconds = 0;
};

/// Collective. Only rank 0's `search` is used. Errors: interrupted, as AgreedError, if a rank was asked to stop; errors
/// of the engine and of `bench`, with a text that names the setting that was being tried.
ScheduleChoice run_search(Engine& engine, ScheduleSearch search, const TrialBench& bench);

/// Collective: returns the choice kept in `folder` for rank 0's `conditions`. Returns nothing if there is no such
/// choice.
std::optional<ScheduleChoice> recall_schedule(Engine& engine, const std::string& folder,
                                              const ScheduleCase& conditions);
/// On rank 0: keeps the choice in `folder`, unless `folder` is empty. If the folder cannot be written, a note in
/// `choice` says why.
void remember_schedule(const std::string& folder, const ScheduleCase& conditions, ScheduleChoice& choice);

/// Collective: runs run_search() with `parts` and `trainer`. Do not use `parts` and `trainer` for a run afterwards,
/// because they have trained. `progress` and `stop_requested` are those of SessionObserver.
ScheduleChoice try_schedules(RankParts& parts, Trainer& trainer, const std::function<void(const Progress&)>& progress,
                             const std::function<std::string()>& stop_requested);

}  // namespace hvd::bench
