// Provenance of one run: facts about the process, and the options that RunRecord has no field for.
#pragma once

#include "bench/store/provenance.h"
#include "bench/store/run_record.h"
#include "bench/world/options.h"

namespace hvd::bench {

/// Adds the facts to `run.provenance`, which keeps those it has already. The session adds the options of the engine.
void add_run_facts(const Options& options, const Provenance& process, RunRecord& run);

}  // namespace hvd::bench
