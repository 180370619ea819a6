// Where the results of `hvd_bench coll` go: standard output, and the files of -J and --csv. Rank 0 only.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/console.h"
#include "bench/cli/environment.h"
#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/coll/session.h"
#include "bench/session.h"

namespace hvd::bench {

/// Before anything is measured. Errors: io when a file could not be put where -J or --csv say.
void check_coll_outputs(const coll::CollOptions& options);

/// Arguments of put_coll_outputs(), all borrowed.
struct CollOutput {
  const coll::CollOptions& options;
  const std::vector<std::string>& argv;
  const Environment& environment;
  Console& console;
};

/// Prints the table and writes the files, all that can be written. Errors: io for the first that cannot.
void put_coll_outputs(const CollOutput& output, const coll::CollResult& result);

/// The calls that both kinds of sessions share, and those that print. Borrows what `output` borrows.
coll::CollObserver coll_observer(const SessionObserver& session, const CollOutput& output);

}  // namespace hvd::bench
