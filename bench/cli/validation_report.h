// The text that a person reads after `hvd_bench validate`. Pure: from plain data to text.
#pragma once

#include <string>

#include "bench/session/validation.h"

namespace hvd::bench {

/// Returns a table of the ranks, the slowest first, and one line per finding. If there are many ranks, the table shows
/// only some.
std::string validation_text(const Validation& validation);

}  // namespace hvd::bench
