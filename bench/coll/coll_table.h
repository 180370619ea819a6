// The rows of the options of `hvd_bench coll`, and which of their values must be equal on all ranks.
#pragma once

#include "bench/coll/options.h"
#include "bench/world/option_table.h"
#include "bench/world/settings.h"

namespace hvd::bench::coll {

/// The rows set `options`, which must outlive the table. Some letters are those of nccl-tests. --no-db sets nothing.
OptionTable coll_table(CollOptions& options);

/// Returns the options that must be equal on all ranks, because the lists of cells and the buffers depend on them.
RunSettings settings_of(const CollOptions& options);

}  // namespace hvd::bench::coll
