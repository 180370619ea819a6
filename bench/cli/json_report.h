// The session as one JSON document for --json: the run records field for field as results/schema.sql names
// them, without the samples, which are in the store. Numbers that JSON does not have are null.
#pragma once

#include <string>

#include "bench/cli/report.h"
#include "bench/session.h"

namespace hvd::bench {

std::string json_report(const SessionResult& result, const StoredIn& stored);

}  // namespace hvd::bench
