// Renders the session as one JSON document for --json. The fields of run records have the names that
// results/schema.sql gives them. Samples are omitted; the store has them. NaN and infinities become null.
#pragma once

#include <string>

#include "bench/cli/report.h"
#include "bench/session/session.h"

namespace hvd::bench {

std::string json_report(const SessionResult& result, const StoredIn& stored);

}  // namespace hvd::bench
