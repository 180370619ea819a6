// Settings that the user gave and that the run's schedule does not use. Used by one thread while the command line is
// parsed.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bench/store/process_start.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Returns the names of the options and variables that were given and that `schedule` does not use.
std::vector<std::string> unused_settings(const CLI::App& app, const Environment& environment, Schedule schedule);

}  // namespace hvd::bench
