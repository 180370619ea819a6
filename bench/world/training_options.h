// The options of `train` and `validate`, and which of their values must be equal on all ranks (settings.h).
#pragma once

#include "bench/world/option_table.h"
#include "bench/world/options.h"
#include "bench/world/settings.h"
#include "bench/world/setup.h"

namespace hvd::bench {

/// The rows set `options`, which must outlive the table. --no-db sets nothing.
OptionTable training_table(Options& options);

/// The options that `validate` has beside those of training.
OptionTable validation_table(ValidateOptions& options);

/// Sets the options that every validation needs, replacing the user's values. `options.validate` must be set.
void settle_validation(Options& options);

/// Leaves out the settings that only rank 0 uses (how long to measure, where to store). Pure.
RunSettings settings_of(const Options& options, const Setup& setup);

}  // namespace hvd::bench
