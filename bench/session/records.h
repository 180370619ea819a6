// Turns the facts and measurements of a session into run records, also the time that other programs take meanwhile.
// Rank 0 only.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "bench/session/message.h"
#include "bench/session/phase_log.h"
#include "bench/session/session_parts.h"
#include "bench/store/run_record.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Processors of one host, in time per time.
struct OtherUse {
  double used = 0;      ///< by other programs
  long processors = 0;  ///< online
  /// More than a tenth of all processors: times are uncertain. `hvdb ranks` has the same limit.
  [[nodiscard]] bool disturbs() const { return used > 0.1 * static_cast<double>(processors); }
  [[nodiscard]] std::string text() const;  ///< "0.92 of 2"
};

/// Measures the processor time that other programs take from rank 0's host while a session runs.
class OtherPrograms {
 public:
  /// Begins to count, for the hosts of the engine's ranks.
  explicit OtherPrograms(const Engine& engine);

  /// Returns what others used since the construction; nothing if the kernel does not tell.
  /// `answers`: [rank], to Task::kMeasureMemory.
  [[nodiscard]] std::optional<OtherUse> use(std::span<const Answer> answers) const;

 private:
  const Engine& engine_;
  const Clock::time_point begin_ = Clock::now();
  const double host_seconds_before_;
};

/// Begins the record of a run of `phase`: everything except samples and results. Calls SessionParts::prepare, and then
/// adds the provenance that only a session knows (backend, transport, options of engine and optimiser), but no key that
/// the record has by then.
RunRecord begin_record(const SessionParts& session, Phase phase);

/// Marks `run` as incomplete because of `error`. After a lost peer, adds the engine's flight record to the provenance.
void mark_incomplete(RunRecord& run, const Error& error, const Engine& engine);

/// Fills in the samples so far, the median with its interval and replicates, and the throughput.
void fill_samples(RunRecord& run, const PhaseLog& log);

/// Fills in the step time of a run, which has one or more samples, each the time of `step_times` (median with interval
/// and replicates), the throughput, and the number of steps.
void fill_step_time(RunRecord& run, std::span<const double> step_times);

/// Returns the mean over ranks of the last loss. Every rank must have one.
double mean_of_last_losses(const RunRecord& run);

/// Fills in the memory of each rank and what other programs used meanwhile. `answers`: [rank], to Task::kMeasureMemory.
void fill_use(RunRecord& run, std::span<const Answer> answers, const std::optional<OtherUse>& others);

}  // namespace hvd::bench
