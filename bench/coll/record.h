// Writes one launch of `hvd_bench coll` as rows of results/schema_2.sql. Threads: used on rank 0 only, by one thread at
// a time.
#pragma once

#include <string>

#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

class ResultStore;

namespace coll {

/// Everything to store about one launch. Borrows `options` and `result`.
struct Record {
  std::string session_uuid;
  const CollOptions& options;
  const CollResult& result;
  Provenance provenance;  ///< the facts of collect_provenance() and launch_facts()
};

/// Returns facts that explain the figures and that collect_provenance() does not return: libraries, algorithm, hosts
/// and options.
Provenance launch_facts(const CollOptions& options, const CollResult& result);

/// Returns a hash, 16 hex digits, over the conditions of the launch (ranks, nodes, pace, caches) and over the facts
/// whose ProvenanceFact::in_fingerprint is set. The hash does not cover cells, identities, times and results.
std::string fingerprint(const Record& record);

/// Saves the launch. Replaces all rows of an earlier save with the same session_uuid. Omits cells without samples.
/// Errors: io.
void save(const Record& record, ResultStore& store);

}  // namespace coll
}  // namespace hvd::bench
