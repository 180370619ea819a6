// Decides which operations are fused, before the compiler compiles the first one. The decisions depend only on the
// graph.
#include <algorithm>

#include "models/onednn/compiler.h"
#include "models/onednn/layer_plans.h"

namespace hvd::models::onednn {
namespace {

/// Returns the tensors that the compiled node reads. The backward pass of a max pool reads a workspace of the library
/// instead of x and y.
std::vector<TensorId> read_by(const Node& node) {
  if (node.kind == OpKind::kMaxPoolBackward) return {node.inputs[2]};
  return node.inputs;
}

}  // namespace

NodeId Compiler::only_forward_consumer(TensorId id) const {
  NodeId only = kNoNode;
  for (std::size_t i = 0; i < graph_.first_backward; ++i) {
    const auto& inputs = graph_.nodes[i].inputs;
    const auto uses = std::count(inputs.begin(), inputs.end(), id);
    if (uses == 0) continue;
    if (uses > 1 || only != kNoNode) return kNoNode;
    only = static_cast<NodeId>(i);
  }
  return only;
}

void Compiler::decide_fusions() {
  const std::size_t nodes = graph_.nodes.size();
  relu_fusion_.assign(nodes, ReluFusion::kNone);
  skipped_.assign(nodes, false);
  mask_at_pool_.assign(nodes, false);
  consumers_.assign(graph_.tensors.size(), {});
  fused_relu_.assign(nodes, kNoNode);

  for (std::size_t i = 0; i < graph_.first_backward; ++i) {
    const Node& relu = graph_.nodes[i];
    if (relu.kind != OpKind::kRelu) continue;
    const auto id = static_cast<NodeId>(i);
    const NodeId producer = graph_.tensor(relu.inputs[0]).producer;
    if (producer != kNoNode && only_forward_consumer(relu.inputs[0]) == id) {
      switch (node(producer).kind) {
        case OpKind::kConv:
        case OpKind::kFullyConnected: relu_fusion_[i] = ReluFusion::kPostOperation; break;
        case OpKind::kBatchNorm: relu_fusion_[i] = ReluFusion::kNorm; break;
        case OpKind::kAdd: relu_fusion_[i] = ReluFusion::kAdd; break;
        default: break;
      }
    }
    if (relu_fusion_[i] == ReluFusion::kAdd) {
      skipped_[static_cast<std::size_t>(producer)] = true;  // the relu's operation does the add
    } else if (relu_fusion_[i] != ReluFusion::kNone) {
      skipped_[i] = true;  // the producer's operation does the relu
      fused_relu_[static_cast<std::size_t>(producer)] = id;
    }
    // If only a max pool reads the relu's output, the pool's backward writes diffs only to elements that are a maximum
    // of a window. The maximum's sign can therefore mask the pool's output diff, which is smaller than the relu's diff.
    const NodeId reader = only_forward_consumer(relu.outputs[0]);
    const bool by_sign = relu_fusion_[i] == ReluFusion::kPostOperation || relu_fusion_[i] == ReluFusion::kNone;
    mask_at_pool_[i] = by_sign && reader != kNoNode && node(reader).kind == OpKind::kMaxPool;
  }

  for (std::size_t i = 0; i < nodes; ++i) {
    const Node& consumer = graph_.nodes[i];
    const auto id = static_cast<NodeId>(i);
    std::vector<TensorId> reads = read_by(consumer);
    if (consumer.kind == OpKind::kReluBackward) {
      const auto relu = static_cast<std::size_t>(consumer.forward);
      const bool by_sign = relu_fusion_[relu] == ReluFusion::kPostOperation || relu_fusion_[relu] == ReluFusion::kNone;
      if (!by_sign || mask_at_pool_[relu]) reads.erase(reads.begin());
    }
    if (consumer.kind == OpKind::kMaxPoolBackward) {
      const NodeId producer = graph_.tensor(consumer.inputs[0]).producer;
      if (producer != kNoNode && mask_at_pool_[static_cast<std::size_t>(producer)]) reads.push_back(consumer.inputs[1]);
    }
    for (const TensorId input : reads) consumers_[static_cast<std::size_t>(input)].push_back(id);
  }

  // If only a ReLU's backward reads a sum of diffs, the operation of that backward node computes the sum.
  for (std::size_t i = graph_.first_backward; i < nodes; ++i) {
    const Node& sum = graph_.nodes[i];
    if (sum.kind != OpKind::kAccumulate) continue;
    const auto& readers = consumers_[static_cast<std::size_t>(sum.outputs[0])];
    if (readers.size() != 1 || node(readers[0]).kind != OpKind::kReluBackward) continue;
    const auto relu = static_cast<std::size_t>(node(readers[0]).forward);
    if (relu_fusion_[relu] == ReluFusion::kNorm || mask_at_pool_[relu]) continue;
    skipped_[i] = true;
  }
}

}  // namespace hvd::models::onednn
