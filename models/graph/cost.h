// Floating-point operations and memory traffic of a graph, for the bounds and the per-layer profile. Pure.
#pragma once

#include <cstdint>

#include "models/graph/graph.h"

namespace hvd::models {

struct NodeCost {
  double flops = 0;  ///< a multiply and an add count as two
  double bytes = 0;  ///< minimum memory traffic: every input is read once and every output is written once
};

/// Returns the cost of one node if every element takes `element_bytes`.
NodeCost cost(const Graph& graph, const Node& node, double element_bytes);

/// Returns the multiply-accumulates of the forward pass per image. Counts only convolutions and fully connected layers,
/// because published GMACs count only these, with which the tests compare it.
double forward_macs_per_image(const Graph& graph);

/// Returns the floating-point operations of all nodes of one step, per image.
double step_flops_per_image(const Graph& graph);

}  // namespace hvd::models
