// Turns the facts and measurements of a session into run records. Rank 0 only.
#pragma once

#include "bench/session/other_programs.h"
#include "bench/session/phase_log.h"
#include "bench/session/session_parts.h"
#include "bench/store/run_record.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Begins the record of a run of `phase`: everything except samples and results. Calls SessionParts::prepare, and then
/// adds the provenance that only a session knows (backend, transport, options of engine and optimiser), but no key that
/// the record has by then.
RunRecord begin_record(const SessionParts& session, Phase phase);

/// Marks `run` as incomplete because of `error`. After a lost peer, adds the engine's flight record to the provenance.
void mark_incomplete(RunRecord& run, const Error& error, const Engine& engine);

/// Fills in the samples so far, the median with its interval and replicates, and the throughput.
void fill_samples(RunRecord& run, const PhaseLog& log);

/// Fills in the memory of each rank and what other programs used meanwhile. `answers`: [rank], to Task::kMeasureMemory.
void fill_use(RunRecord& run, std::span<const Answer> answers, const std::optional<OtherUse>& others);

}  // namespace hvd::bench
