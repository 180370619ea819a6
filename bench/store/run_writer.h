// Writes one RunRecord as rows of the tables of results/schema.sql. Internal to result_store.
#pragma once

#include <optional>

#include "bench/store/run_record.h"
#include "bench/store/sqlite_handle.h"

namespace hvd::bench {

/// Makes the stored rows of the run equal to `run`: inserts, changes and deletes rows as needed. Does not write series
/// that are stored already and did not change. Call it inside a transaction. Errors: io.
void write_run(Database& database, const RunRecord& run);

/// Returns a member of the estimate: value, low or high. nullopt if there is no estimate.
inline std::optional<double> part(const std::optional<Estimate>& estimate, double Estimate::*member) {
  return estimate ? std::optional((*estimate).*member) : std::nullopt;
}

}  // namespace hvd::bench
