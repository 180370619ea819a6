// Computes what a training of another program lost where, and makes the runs to store and to print. Pure but for the
// runs' ids.
#pragma once

#include <string>

#include "bench/cli/analyse/samples_text.h"
#include "bench/session/session.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

/// Returns the runs of phases solo, none and full, and notes for the closing table: how communication was measured,
/// which rank is late, and cautions. `program`: facts about this program, which are stored outside the fingerprint.
SessionResult analyse_samples(SamplesText samples, const Provenance& program, const std::string& session_uuid);

}  // namespace hvd::bench
