// Settings that the user gave and that the run's schedule does not use. Used by one thread while the command line is
// parsed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/store/process_start.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Returns the names of the options and variables that were given and that `schedule` does not use. `given` tells
/// whether the command line has an option.
std::vector<std::string> unused_settings(const std::function<bool(const char*)>& given, const Environment& environment,
                                         Schedule schedule);

}  // namespace hvd::bench
