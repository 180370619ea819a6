// The settings of `train` and `validate` that must be equal on all ranks (settings.h).
#pragma once

#include "bench/world/options.h"
#include "bench/world/settings.h"
#include "bench/world/setup.h"

namespace hvd::bench {

/// Leaves out the settings that only rank 0 uses (how long to measure, where to store). Pure.
RunSettings settings_of(const Options& options, const Setup& setup);

}  // namespace hvd::bench
