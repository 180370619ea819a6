// The least work of one launch: operations and bytes. Measured times are compared with this bound. Pure.
#pragma once

#include "models/cudnn/program.h"
#include "models/graph/cost.h"

namespace hvd::models::cudnn {

/// FLOPs: products with their bias as models/graph/cost.h counts them; for every other operation one per element of its
/// first input or output, whichever has more; none for copies. Bytes: each value that the group reads or leaves in
/// memory, once. Values inside the group cost nothing.
NodeCost group_cost(const Graph& graph, const Program& program, const Group& group);

}  // namespace hvd::models::cudnn
