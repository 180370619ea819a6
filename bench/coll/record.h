// What the store keeps of one launch of `hvd_bench coll`, and how that becomes rows of results/schema_2.sql. Rank 0
// only, on one thread at a time.
#pragma once

#include <string>

#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/run_record.h"

namespace hvd::bench {

class Database;

namespace coll {

/// Borrows options and result.
struct Record {
  std::string session_uuid;
  const CollOptions& options;
  const CollResult& result;
  Provenance provenance;  ///< collect_provenance() and launch_facts()
};

/// Facts that explain the figures and are not in the process's provenance: libraries, algorithm, hosts and options.
Provenance launch_facts(const CollOptions& options, const CollResult& result);

/// Hash over what the launch measured on (ranks, hosts, pace, caches) and the facts with in_fingerprint, 16 hex digits.
/// The cells, identities, times and results are left out.
std::string fingerprint(const Record& record);

/// Replaces the launch with all its rows; inside the caller's transaction. Cells without samples are left out.
/// Errors: io.
void write(Database& database, const Record& record);

}  // namespace coll
}  // namespace hvd::bench
