// Reverse-mode differentiation of a forward graph into explicit backward nodes. Pure.
#pragma once

#include "models/graph/graph.h"

namespace hvd::models {

/// Returns `forward` with its backward nodes appended in execution order: losses first, then forward nodes in reverse.
/// The weight gradients of a node are computed before its data gradient, so that their communication starts early.
/// - No data gradient is made for the images.
/// - An activation used k > 1 times gets one kAccumulate node, which sums its k diffs.
/// - kAdd needs no backward node: both inputs share the output's diff tensor.
/// - graph.parameters is reordered into gradient-production order.
Graph differentiate(const Graph& forward);

}  // namespace hvd::models
