// The command line of `hvd_bench validate`: its own options, and the options of training that it refuses.
#pragma once

#include <CLI/CLI.hpp>

#include "bench/world/options.h"

namespace hvd::bench {

/// Registers the options of `validate`. `options` must live until the command line is parsed.
void register_validation(CLI::App& command, ValidateOptions& options);

/// Call after `app` has parsed the options of training. Errors: invalid_argument for the first given option that has no
/// meaning for `validate`: a validation reduces nothing, computes each step, and takes a fixed number of steps.
void refuse_training_only(const CLI::App& app);

/// Sets the options that every validation needs, replacing the user's values. `options.validate` must be set.
void settle_validation(Options& options);

}  // namespace hvd::bench
