#include "models/graph/graph.h"

#include <algorithm>

#include "engine/base/assert.h"

namespace hvd::models {

Shape::Shape(std::initializer_list<std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  HVD_ASSERT(dims.size() <= dims_.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::int64_t Shape::count() const noexcept {
  if (rank_ == 0) return 0;  // graphs have no scalars: rank 0 is a shape that was never set
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) product *= dims_[static_cast<std::size_t>(axis)];
  return product;
}

std::string Shape::text() const {
  std::string out;
  for (int axis = 0; axis < rank_; ++axis) {
    if (axis > 0) out += 'x';
    out += std::to_string(dims_[static_cast<std::size_t>(axis)]);
  }
  return out;
}

std::string_view name(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::kConv: return "conv";
    case OpKind::kBatchNorm: return "batch_norm";
    case OpKind::kRelu: return "relu";
    case OpKind::kMaxPool: return "max_pool";
    case OpKind::kAvgPool: return "avg_pool";
    case OpKind::kGlobalAvgPool: return "global_avg_pool";
    case OpKind::kFullyConnected: return "fully_connected";
    case OpKind::kAdd: return "add";
    case OpKind::kConcat: return "concat";
    case OpKind::kDropout: return "dropout";
    case OpKind::kSoftmaxCrossEntropy: return "softmax_cross_entropy";
    case OpKind::kConvBackwardWeights: return "conv_backward_weights";
    case OpKind::kConvBackwardData: return "conv_backward_data";
    case OpKind::kBatchNormBackward: return "batch_norm_backward";
    case OpKind::kReluBackward: return "relu_backward";
    case OpKind::kMaxPoolBackward: return "max_pool_backward";
    case OpKind::kAvgPoolBackward: return "avg_pool_backward";
    case OpKind::kGlobalAvgPoolBackward: return "global_avg_pool_backward";
    case OpKind::kFullyConnectedBackwardWeights: return "fully_connected_backward_weights";
    case OpKind::kFullyConnectedBackwardData: return "fully_connected_backward_data";
    case OpKind::kConcatBackward: return "concat_backward";
    case OpKind::kDropoutBackward: return "dropout_backward";
    case OpKind::kSoftmaxCrossEntropyBackward: return "softmax_cross_entropy_backward";
    case OpKind::kAccumulate: return "accumulate";
  }
  return "unknown";
}

bool is_backward(OpKind kind) noexcept { return kind >= OpKind::kConvBackwardWeights; }

std::int64_t Graph::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters) count += tensor(parameter.value).shape.count();
  return count;
}

}  // namespace hvd::models
