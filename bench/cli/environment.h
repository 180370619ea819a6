// Reads the environment of this process. main() reads it once; all other code gets the copy as an argument.
#pragma once

#include "bench/store/process_start.h"

namespace hvd::bench {

/// Returns a copy of this process's environment.
Environment process_environment();

}  // namespace hvd::bench
