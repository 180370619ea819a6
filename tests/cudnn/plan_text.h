// Writes a plan as lines of text, for tests that compare it with an earlier one: launches in order with their work,
// engines and places in memory. Names of C++ types and numbers of enumerations are not in it. signature() is: files of
// winners are keyed by it. Pure.
#pragma once

#include <string>
#include <vector>

#include "models/cudnn/plan.h"

namespace hvd::models::cudnn::testing {

/// A line per launch, engine, arena slot and fusion that is not served.
std::vector<std::string> plan_lines(const Graph& graph, const Plan& plan);
/// "groups 412 cudnn 160 cublaslt 3 own 249 engines 63 candidates 480 weights 51115136 ... workspace 131": names and
/// numbers in turn, bytes by class of memory.
std::string plan_figures(const Plan& plan);

}  // namespace hvd::models::cudnn::testing
