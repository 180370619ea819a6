// The command line of `hvd_bench validate`: its own options, and those of training that it cannot heed.
#pragma once

#include <CLI/CLI.hpp>

#include "bench/options.h"

namespace hvd::bench {

/// `options` has to live until the command line is parsed.
void register_validation(CLI::App& command, ValidateOptions& options);

/// `app` has parsed the options of training. Errors: invalid_argument for the first that was given and means nothing
/// here: a validation reduces nothing, computes each step, and takes as many as it is told to.
void refuse_training_only(const CLI::App& app);

/// What a validation is, whatever else was asked for. `options.validate` is set.
void settle_validation(Options& options);

}  // namespace hvd::bench
