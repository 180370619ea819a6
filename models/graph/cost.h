// Arithmetic and traffic of a graph: what the bounds and the per-layer profile stand on. Pure.
#pragma once

#include <cstdint>

#include "models/graph/graph.h"

namespace hvd::models {

struct NodeCost {
  double flops = 0;  ///< multiply and add count as two
  double bytes = 0;  ///< compulsory traffic: every input read once, every output written once
};

/// Cost of one node when every element takes `element_bytes`.
NodeCost cost(const Graph& graph, const Node& node, double element_bytes);

/// Multiply-accumulates of convolutions and fully connected layers, forward, per image (GMAC as published).
double forward_macs_per_image(const Graph& graph);

/// Floating-point operations of all nodes of one step, per image.
double step_flops_per_image(const Graph& graph);

}  // namespace hvd::models
