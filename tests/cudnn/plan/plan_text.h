// Writes a plan as lines of text, so that tests can compare the plan with an earlier plan. The lines list the launches
// in order, with their work, engines and places in memory. The text has no names of C++ types and no values of
// enumerations, so renaming does not change it. The text includes signature(), because files of winners use signatures
// as keys. Pure.
#pragma once

#include <string>
#include <vector>

#include "models/cudnn/plan/plan.h"

namespace hvd::models::cudnn::testing {

/// Returns one line for each launch, engine, candidate and arena slot, and for each fusion that the library refused.
std::vector<std::string> plan_lines(const Graph& graph, const Plan& plan);
/// Returns counts, and the bytes of each class of memory. Names and numbers alternate: "groups 412 cudnn 160 cublaslt 3
/// own 249 engines 63 candidates 480 weights 51115136 ... workspace 131".
std::string plan_figures(const Plan& plan);

}  // namespace hvd::models::cudnn::testing
