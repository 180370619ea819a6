// The search for a schedule at work (schedule_search.h decides): every rank trains a few steps with what rank 0 says,
// and the slowest rank's times count. One thread per rank, the one that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/run_record.h"
#include "bench/session.h"
#include "bench/train/rank_parts.h"
#include "bench/train/schedule_memory.h"
#include "bench/train/schedule_search.h"
#include "bench/train/trainer.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

struct ScheduleChoice {
  ScheduleSetting setting;         ///< on all ranks
  Provenance provenance;           ///< rank 0: gpu.schedule.*, what was chosen and what was tried
  std::vector<std::string> notes;  ///< rank 0: one line
};

/// What the search needs of a rank. All but the first may be null.
struct TrialBench {
  /// Trains with `setting` until steps are as they will be, then so many more: their seconds.
  std::function<std::vector<double>(const ScheduleSetting& setting, std::int64_t steps)> time_steps;
  /// Of rank 0, after a visit: median step of the slowest rank, and seconds until the search is over, at most.
  std::function<void(double step_seconds, double seconds_left)> progress;
  std::function<std::string()> stop_requested;
  /// Seconds after which no further knob is begun; 0: no limit.
  double limit_seconds = 0;
};

/// Collective. `search`: rank 0's; the others' is not looked at. Errors: interrupted, as AgreedError, where a rank was
/// asked to stop; those of the engine and of `bench`, saying what was being tried.
ScheduleChoice run_search(Engine& engine, ScheduleSearch search, const TrialBench& bench);

/// Collective: what an earlier search kept in `folder` for this case; empty `folder`: nothing. `of`: rank 0's.
std::optional<ScheduleChoice> recall_schedule(Engine& engine, const std::string& folder, const ScheduleCase& of);
/// Rank 0: keeps what was chosen; where that fails, a note in `choice` says why. Nothing with an empty `folder`.
void remember_schedule(const std::string& folder, const ScheduleCase& of, ScheduleChoice& choice);

/// Collective: run_search() with `parts` and `trainer`, which are of no use for a run afterwards: they have
/// trained. `progress` and `stop_requested` as in SessionObserver.
ScheduleChoice try_schedules(RankParts& parts, Trainer& trainer, const std::function<void(const Progress&)>& progress,
                             const std::function<std::string()>& stop_requested);

}  // namespace hvd::bench
