// The minimum work of one launch, in FLOPs and bytes. Measured times are compared with this bound. Pure.
#pragma once

#include "models/cudnn/lowering/program.h"
#include "models/graph/cost.h"

namespace hvd::models::cudnn {

/// FLOPs: for products with their bias, as in models/graph/cost.h; for copies, 0; for every other operation, one FLOP
/// per element of its first input or first output, whichever has more elements. Bytes: each value that the group reads
/// or leaves in memory counts once. Values inside the group cost nothing.
NodeCost group_cost(const Graph& graph, const Program& program, const Group& group);

}  // namespace hvd::models::cudnn
