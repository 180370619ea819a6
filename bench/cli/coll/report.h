// Turns the results of a session of collectives into text: nccl-tests' table with additional columns, JSON with
// nccl-tests' keys, and CSV with one row per cell. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/store/run_record.h"

namespace hvd::bench::coll {

/// Returns one section per collective and variant. The first 13 columns of a row are those of nccl-tests, with "-" if
/// the form (out of place, in place) was not measured. Columns for out of place and for in place follow: half width of
/// the interval ("!" means that it was too wide when the cell ended), per cent of the bound, skew, and the rank that
/// arrives last. The last columns hold the ratio to the first variant, if there are several variants.
std::string table(const CollOptions& options, const CollResult& result);

/// Writes the keys that nccl-tests writes with -J, version 2, and keys of our own. `environment` holds the allow-listed
/// facts from environment_facts(); no other environment variable is written.
/// Source: nccl-tests, src/util.cu.
std::string json(const CollOptions& options, const CollResult& result, const std::vector<std::string>& argv,
                 const Provenance& environment);

/// Returns a header line and one line per cell. Times are in microseconds and rates in GB/s; an empty field is unknown.
std::string csv(const CollResult& result);

}  // namespace hvd::bench::coll
