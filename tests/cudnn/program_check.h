// Checks the structure of a program against its graph. Pure: the check reads program and graph, and keeps nothing.
#pragma once

#include <string>
#include <vector>

#include "models/cudnn/program.h"

namespace hvd::models::cudnn::testing {

/// Checks that every node is finished exactly once (by a group or elided), that every value is written once and before
/// it is read, and that every gradient is written. Returns one line per violation.
std::vector<std::string> violations(const Graph& graph, const Program& program);

}  // namespace hvd::models::cudnn::testing
