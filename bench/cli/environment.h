// Reads the environment of this process. main() does so once; everything that depends on the environment is a function
// of the result.
#pragma once

#include "bench/store/process_start.h"

namespace hvd::bench {

/// Returns a copy of this process's environment.
Environment process_environment();

}  // namespace hvd::bench
