#include "models/graph/cost.h"

namespace hvd::models {
namespace {

// Floating-point operations per element of the bandwidth-bound kinds of node, counted from the formulas in
// tests/models/reference/ops.cpp. These kinds are one percent of a step's operations. Their time depends on `bytes`,
// not on `flops`.
constexpr double kBatchNormFlops = 7;           // sum; difference, square, sum; normalise, scale, shift
constexpr double kBatchNormBackwardFlops = 11;  // x-hat (2), two sums (3), dx (6)
constexpr double kSoftmaxFlops = 4;             // difference, exponential (as one), sum, division

double count(const Graph& graph, TensorId id) {
  return id == kNoTensor ? 0.0 : static_cast<double>(graph.tensor(id).shape.count());
}

double window_area(const Node& node) {
  const auto& window = std::get<Window>(node.attr);
  return static_cast<double>(window.kernel_h) * window.kernel_w;
}

// Returns the multiply-accumulates of a forward convolution or fully connected node. Each output element takes one
// multiply-accumulate per weight of its channel. Taps on padding are counted, because the published figures count them.
double macs(const Graph& graph, const Node& forward) {
  const Shape& weight = graph.tensor(forward.inputs[1]).shape;
  return count(graph, forward.outputs[0]) * static_cast<double>(weight.count()) / static_cast<double>(weight[0]);
}

bool has_macs(OpKind kind) { return kind == OpKind::kConv || kind == OpKind::kFullyConnected; }

double flops(const Graph& graph, const Node& node) {
  const double out = count(graph, node.outputs[0]);
  switch (node.kind) {
    case OpKind::kConv:
    case OpKind::kFullyConnected: return 2 * macs(graph, node) + (node.inputs.size() > 2 ? out : 0);
    case OpKind::kConvBackwardWeights:
    case OpKind::kFullyConnectedBackwardWeights:
      return 2 * macs(graph, graph.node(node.forward)) + (node.outputs.size() > 1 ? count(graph, node.inputs[1]) : 0);
    case OpKind::kConvBackwardData:
    case OpKind::kFullyConnectedBackwardData: return 2 * macs(graph, graph.node(node.forward));
    case OpKind::kBatchNorm: return kBatchNormFlops * out;
    case OpKind::kBatchNormBackward: return kBatchNormBackwardFlops * count(graph, node.inputs[0]);
    case OpKind::kMaxPool:
    case OpKind::kAvgPool: return window_area(node) * out;
    case OpKind::kMaxPoolBackward: return count(graph, node.inputs[2]);
    case OpKind::kAvgPoolBackward: return window_area(node) * count(graph, node.inputs[0]);
    case OpKind::kGlobalAvgPool: return count(graph, node.inputs[0]);
    case OpKind::kSoftmaxCrossEntropy: return kSoftmaxFlops * count(graph, node.inputs[0]);
    case OpKind::kSoftmaxCrossEntropyBackward: return out;
    case OpKind::kAccumulate: return out * (static_cast<double>(node.inputs.size()) - 1);
    case OpKind::kRelu:
    case OpKind::kAdd:
    case OpKind::kDropout:
    case OpKind::kReluBackward:
    case OpKind::kGlobalAvgPoolBackward:
    case OpKind::kDropoutBackward: return out;
    case OpKind::kConcat:
    case OpKind::kConcatBackward: return 0;  // only moves bytes
  }
  return 0;
}

double bytes_of(const Graph& graph, TensorId id, double element_bytes) {
  if (id == kNoTensor) return 0;
  const TensorDesc& tensor = graph.tensor(id);
  if (tensor.role == TensorRole::kLabel) return 4 * count(graph, id);  // int32 for every compute type
  const double touched = tensor.role == TensorRole::kState ? 2 : 1;    // running statistics: read and written
  return touched * element_bytes * count(graph, id);
}

}  // namespace

NodeCost cost(const Graph& graph, const Node& node, double element_bytes) {
  NodeCost total{.flops = flops(graph, node), .bytes = 0};
  for (const TensorId input : node.inputs) total.bytes += bytes_of(graph, input, element_bytes);
  for (const TensorId output : node.outputs) total.bytes += bytes_of(graph, output, element_bytes);
  return total;
}

double forward_macs_per_image(const Graph& graph) {
  double total = 0;
  for (std::size_t i = 0; i < graph.first_backward; ++i) {
    if (has_macs(graph.nodes[i].kind)) total += macs(graph, graph.nodes[i]);
  }
  return total / static_cast<double>(graph.batch_size);
}

double step_flops_per_image(const Graph& graph) {
  double total = 0;
  for (const Node& node : graph.nodes) total += flops(graph, node);
  return total / static_cast<double>(graph.batch_size);
}

}  // namespace hvd::models
