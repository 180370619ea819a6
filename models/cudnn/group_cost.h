// What one launch has to compute and to move at least: the bound that a measured time is held against. Pure.
#pragma once

#include "models/cudnn/program.h"
#include "models/graph/cost.h"

namespace hvd::models::cudnn {

/// FLOPs: products as models/graph/cost.h counts them, with their bias; one per element read or made for every other
/// operation; none for copies. Bytes: each value that the group reads or leaves in memory, once; what passes through
/// the group costs nothing.
NodeCost group_cost(const Graph& graph, const Program& program, const Group& group);

}  // namespace hvd::models::cudnn
