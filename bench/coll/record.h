// Writes one launch of `hvd_bench coll` as rows of results/schema_2.sql. Rank 0 only, on one thread at a time.
#pragma once

#include <string>

#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

class ResultStore;

namespace coll {

/// Borrows options and result.
struct Record {
  std::string session_uuid;
  const CollOptions& options;
  const CollResult& result;
  Provenance provenance;  ///< collect_provenance() and launch_facts()
};

/// Returns facts that explain the figures but are not in collect_provenance(): libraries, algorithm, hosts and options.
Provenance launch_facts(const CollOptions& options, const CollResult& result);

/// Returns a hash, 16 hex digits, over the conditions of the launch (ranks, nodes, pace, caches) and the facts with
/// in_fingerprint. Cells, identities, times and results are not part of it.
std::string fingerprint(const Record& record);

/// Saves the launch, or replaces it and all its rows. Omits cells without samples. Errors: io.
void save(const Record& record, ResultStore& store);

}  // namespace coll
}  // namespace hvd::bench
