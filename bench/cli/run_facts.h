// Provenance of one run: the process's facts, and the options that Options holds and RunRecord does not.
#pragma once

#include "bench/options.h"
#include "bench/provenance.h"
#include "bench/run_record.h"

namespace hvd::bench {

/// Adds to `run.provenance` what is not there yet. The session itself adds the knobs of the engine.
void add_run_facts(const Options& options, const Provenance& process, RunRecord& run);

}  // namespace hvd::bench
