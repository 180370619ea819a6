// Makes the notes that are printed below the closing table and explain its figures: memory compared with its plan,
// exposed communication determined in three ways, efficiency compared with its bound. Rank 0 only; no I/O.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/session/records.h"
#include "bench/session/session_leader.h"
#include "bench/store/run_record.h"
#include "engine/core/bucket_plan.h"

namespace hvd::bench {

/// Returns the notes of a session. `runs` are the session's runs, with phase full last.
std::vector<std::string> closing_notes(std::span<const RunRecord> runs, const Findings& findings,
                                       const core::BucketPlan& plan, const SessionFacts& facts);

/// Returns the notes for a run on GPUs: the bound if there is one, the step time by the host's clock compared with the
/// step time by the GPU's events, and the contents of the step's graph if there is one.
std::vector<std::string> gpu_notes(const RunRecord& run, const TrainingGpu& gpu);

}  // namespace hvd::bench
