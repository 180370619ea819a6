// The lines of the closing table that explain the figures: memory against its plan, exposed communication
// three ways, efficiency beside its bound. Rank 0 only; no I/O.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/run_record.h"
#include "bench/train/conductor.h"
#include "bench/train/records.h"
#include "engine/core/bucket_plan.h"

namespace hvd::bench {

/// What the queue model expects, from gradient-ready times and stand-alone reductions. `plan` has as many
/// buckets as were timed.
struct Expectation {
  double exposed_seconds = 0;
  double overlapped_seconds = 0;
};
std::optional<Expectation> expectation(const Findings& findings, const core::BucketPlan& plan);

/// `runs`: the session's, phase full last.
std::vector<std::string> closing_notes(std::span<const RunRecord> runs, const Findings& findings,
                                       const core::BucketPlan& plan, const SessionFacts& facts);

/// Of a run on GPUs, else none: its bound, if there is one, what the host's clock says beside the GPU's, and what the
/// graph of its steps holds, if they are one.
std::vector<std::string> gpu_notes(const RunRecord& run, const Trainer& trainer);

}  // namespace hvd::bench
