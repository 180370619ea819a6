// Prints what `hvd_bench stored` found in stores.
#pragma once

#include <iosfwd>

#include "bench/store/stored_labels.h"

namespace hvd::bench {

/// Prints the values, one per line, and the problems on standard error. Returns the exit code: 2 if there are problems.
int print_stored_labels(const StoredLabels& labels, std::ostream& out);

}  // namespace hvd::bench
