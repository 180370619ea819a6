// Explains the figures of the closing table: memory compared with its plan, exposed communication determined in three
// ways, efficiency compared with its bound. Says when these figures must not be believed. Rank 0 only; no I/O.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/session/records.h"
#include "bench/session/session_leader.h"
#include "bench/store/run_record.h"
#include "engine/core/bucket_plan.h"

namespace hvd::bench {

/// Returns the cautions of a session that are not facts of its runs. `runs` are the session's runs, with phase full
/// last.
std::vector<std::string> closing_cautions(std::span<const RunRecord> runs, const Findings& findings,
                                          const SessionFacts& facts);

/// Adds the explanations to the last of `runs`, as facts `measurement.<name>` outside the fingerprint.
void explain(std::span<RunRecord> runs, const Findings& findings, const core::BucketPlan& plan,
             const SessionFacts& facts);
/// Does the same for a run on GPUs: the bound if there is one, the step time by the host's clock compared with the step
/// time by the GPU's events, and the contents of the step's graph if there is one.
void explain_gpu(RunRecord& run, const TrainingGpu& gpu);

/// Returns the explanations of `run` as lines, in the order in which --verbose prints them.
std::vector<std::string> explanations(const RunRecord& run);

}  // namespace hvd::bench
