// What a session of collectives prints and writes: nccl-tests' table with more columns behind it, JSON with nccl-tests'
// keys, and CSV with one row per cell. Pure functions from results to text.
#pragma once

#include <string>
#include <vector>

#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/run_record.h"

namespace hvd::bench::coll {

/// One section per collective and variant. The first 13 columns of a row are those of nccl-tests, "-" where there is no
/// such form; then, for out of place and for in place, half width of the interval ("!" behind it: too wide when the
/// cell ended), per cent of the bound, skew and who arrives last; then the ratio to the first variant.
std::string table(const CollOptions& options, const CollResult& result);

/// Keys of nccl-tests' -J, version 2, and ours. `environment`: allow-listed facts (environment_facts()); no other
/// variable is written.
/// Source: nccl-tests, src/util.cu.
std::string json(const CollOptions& options, const CollResult& result, const std::vector<std::string>& argv,
                 const Provenance& environment);

/// A header line, and one line per cell. Times in microseconds, rates in GB/s; an empty field is unknown.
std::string csv(const CollResult& result);

}  // namespace hvd::bench::coll
