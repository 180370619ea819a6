// Writes a plan as lines of text, for tests that compare the plan with an earlier one: launches in order with their
// work, engines and places in memory. The text contains no names of C++ types and no enumeration values, so that
// renaming does not change it. The text contains signature(), because files of winners are keyed by signatures. Pure.
#pragma once

#include <string>
#include <vector>

#include "models/cudnn/plan.h"

namespace hvd::models::cudnn::testing {

/// Returns one line per launch, engine, candidate and arena slot, and per fusion that the library refused.
std::vector<std::string> plan_lines(const Graph& graph, const Plan& plan);
/// Returns counts and the bytes per class of memory, as alternating names and numbers: "groups 412 cudnn 160 cublaslt 3
/// own 249 engines 63 candidates 480 weights 51115136 ... workspace 131".
std::string plan_figures(const Plan& plan);

}  // namespace hvd::models::cudnn::testing
