// Checks the structure of a program against its graph. The check is a pure function.
#pragma once

#include <string>
#include <vector>

#include "models/cudnn/lowering/program.h"

namespace hvd::models::cudnn::testing {

/// Checks that every node is finished exactly once (by a group, or because it is elided), that every value is written
/// exactly once and before it is read, and that every gradient is written. Returns one line for each violation.
std::vector<std::string> violations(const Graph& graph, const Program& program);

}  // namespace hvd::models::cudnn::testing
