#include "models/graph/autodiff.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd::models {
namespace {

class Differentiator {
 public:
  explicit Differentiator(const Graph& forward)
      : graph_(forward), forward_nodes_(forward.nodes.size()), trained_(forward.tensors.size()) {
    find_trained_tensors();
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i) parameter_of_[graph_.parameters[i].value] = i;
  }

  Graph run() && {
    for (const NodeId loss : graph_.losses) loss_backward(loss);
    for (auto id = static_cast<NodeId>(forward_nodes_) - 1; id >= 0; --id) {
      // The node is copied, because new backward nodes reallocate the vector.
      const Node node = graph_.node(id);
      if (node.kind == OpKind::kSoftmaxCrossEntropy || !trained(node.outputs[0])) continue;
      backward(id, node, diff_of(id, node.outputs[0]));
    }
    reorder_parameters();
    return std::move(graph_);
  }

 private:
  // A tensor needs a diff if it depends on a parameter. The images, and tensors that depend only on images, do not.
  void find_trained_tensors() {
    for (const Node& node : graph_.nodes) {
      bool any = false;
      for (const TensorId input : node.inputs) {
        any = any || trained(input) || graph_.tensor(input).role == TensorRole::kParameter;
      }
      if (any) trained_[static_cast<std::size_t>(node.outputs[0])] = true;
    }
  }

  [[nodiscard]] bool trained(TensorId id) const { return trained_[static_cast<std::size_t>(id)]; }

  TensorId new_tensor(std::string name, const Shape& shape, TensorRole role) {
    graph_.tensors.push_back({.name = std::move(name), .shape = shape, .role = role, .producer = kNoNode});
    return static_cast<TensorId>(graph_.tensors.size() - 1);
  }

  /// Makes a diff of activation `id` and records the diff as a contribution. Returns kNoTensor if `id` needs no diff.
  TensorId new_diff(TensorId id, const Node& consumer) {
    if (!trained(id)) return kNoTensor;
    const TensorDesc tensor = graph_.tensor(id);
    const TensorId diff = new_tensor(tensor.name + ":diff@" + consumer.name, tensor.shape, TensorRole::kDiff);
    contributions_[id].push_back(diff);
    return diff;
  }

  TensorId new_gradient(TensorId value) {
    const TensorDesc tensor = graph_.tensor(value);
    const TensorId gradient = new_tensor(tensor.name + ":gradient", tensor.shape, TensorRole::kGradient);
    graph_.parameters[parameter_of_.at(value)].gradient = gradient;
    return gradient;
  }

  void emit(OpKind kind, NodeId forward, const char* suffix, std::vector<TensorId> inputs,
            std::vector<TensorId> outputs) {
    const auto id = static_cast<NodeId>(graph_.nodes.size());
    const Node forward_node = graph_.node(forward);
    for (const TensorId output : outputs) {
      if (output != kNoTensor) graph_.tensors[static_cast<std::size_t>(output)].producer = id;
    }
    graph_.nodes.push_back({.kind = kind,
                            .name = forward_node.name + suffix,
                            .inputs = std::move(inputs),
                            .outputs = std::move(outputs),
                            .attr = forward_node.attr,
                            .forward = forward});
  }

  /// Returns the total diff of `activation`. The total is complete, because all consumers of `activation` come later in
  /// forward order and are therefore differentiated already.
  TensorId diff_of(NodeId producer, TensorId activation) {
    const std::vector<TensorId> parts = contributions_[activation];
    if (parts.empty()) {
      throw Error(Errc::kInvalidArgument, graph_.node(producer).name + ": its output reaches no loss");
    }
    if (parts.size() == 1) return parts[0];
    const TensorDesc tensor = graph_.tensor(activation);
    const TensorId total = new_tensor(tensor.name + ":diff", tensor.shape, TensorRole::kDiff);
    emit(OpKind::kAccumulate, producer, ".accumulate", parts, {total});
    return total;
  }

  void loss_backward(NodeId id) {
    const Node node = graph_.node(id);
    const TensorId dlogits = new_diff(node.inputs[0], node);
    if (dlogits == kNoTensor) return;
    emit(OpKind::kSoftmaxCrossEntropyBackward, id, ".backward", {node.outputs[1], node.inputs[1]}, {dlogits});
  }

  /// Emits the gradients of weights and bias first, then the data gradient if the input needs one.
  void weighted_backward(NodeId id, const Node& node, TensorId dy, OpKind weights_kind, OpKind data_kind) {
    std::vector<TensorId> gradients{new_gradient(node.inputs[1])};
    if (node.inputs.size() > 2) gradients.push_back(new_gradient(node.inputs[2]));
    emit(weights_kind, id, ".backward_weights", {node.inputs[0], dy}, std::move(gradients));
    const TensorId dx = new_diff(node.inputs[0], node);
    if (dx != kNoTensor) emit(data_kind, id, ".backward_data", {node.inputs[1], dy}, {dx});
  }

  void backward(NodeId id, const Node& node, TensorId dy) {
    const TensorId x = node.inputs[0];
    const TensorId y = node.outputs[0];
    switch (node.kind) {
      case OpKind::kConv:
        weighted_backward(id, node, dy, OpKind::kConvBackwardWeights, OpKind::kConvBackwardData);
        return;
      case OpKind::kFullyConnected:
        weighted_backward(id, node, dy, OpKind::kFullyConnectedBackwardWeights, OpKind::kFullyConnectedBackwardData);
        return;
      case OpKind::kBatchNorm: {
        const TensorId dx = new_diff(x, node);
        const TensorId dgamma = new_gradient(node.inputs[1]);
        const TensorId dbeta = new_gradient(node.inputs[2]);
        emit(OpKind::kBatchNormBackward, id, ".backward", {x, node.inputs[1], node.outputs[1], node.outputs[2], dy},
             {dx, dgamma, dbeta});
        return;
      }
      case OpKind::kAdd:
        for (const TensorId input : node.inputs) {
          if (trained(input)) contributions_[input].push_back(dy);
        }
        return;
      case OpKind::kConcat: {
        std::vector<TensorId> diffs;
        for (const TensorId input : node.inputs) diffs.push_back(new_diff(input, node));
        emit(OpKind::kConcatBackward, id, ".backward", {dy}, std::move(diffs));
        return;
      }
      case OpKind::kRelu: emit(OpKind::kReluBackward, id, ".backward", {y, dy}, {new_diff(x, node)}); return;
      case OpKind::kMaxPool: emit(OpKind::kMaxPoolBackward, id, ".backward", {x, y, dy}, {new_diff(x, node)}); return;
      case OpKind::kAvgPool: emit(OpKind::kAvgPoolBackward, id, ".backward", {dy}, {new_diff(x, node)}); return;
      case OpKind::kGlobalAvgPool:
        emit(OpKind::kGlobalAvgPoolBackward, id, ".backward", {dy}, {new_diff(x, node)});
        return;
      case OpKind::kDropout: emit(OpKind::kDropoutBackward, id, ".backward", {dy}, {new_diff(x, node)}); return;
      default: HVD_ASSERT(!"a forward node that is not differentiable");
    }
  }

  void reorder_parameters() {
    std::vector<Parameter> ordered;
    ordered.reserve(graph_.parameters.size());
    for (std::size_t i = forward_nodes_; i < graph_.nodes.size(); ++i) {
      for (const TensorId output : graph_.nodes[i].outputs) {
        if (output == kNoTensor || graph_.tensor(output).role != TensorRole::kGradient) continue;
        const auto parameter = gradient_owner(output);
        ordered.push_back(graph_.parameters[parameter]);
      }
    }
    HVD_ASSERT(ordered.size() == graph_.parameters.size());
    graph_.parameters = std::move(ordered);
  }

  [[nodiscard]] std::size_t gradient_owner(TensorId gradient) const {
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (graph_.parameters[i].gradient == gradient) return i;
    }
    HVD_ASSERT(!"a gradient without its parameter");
    return 0;
  }

  Graph graph_;
  std::size_t forward_nodes_;
  std::vector<bool> trained_;                                // [forward tensor]: true if it depends on a parameter
  std::map<TensorId, std::size_t> parameter_of_;             // value tensor -> parameter index, in creation order
  std::map<TensorId, std::vector<TensorId>> contributions_;  // activation -> its diffs so far
};

}  // namespace

Graph differentiate(const Graph& forward) {
  if (forward.first_backward != forward.nodes.size()) {
    throw Error(Errc::kInvalidArgument, forward.model + ": the graph is differentiated already");
  }
  return Differentiator(forward).run();
}

}  // namespace hvd::models
