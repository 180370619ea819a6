#include "models/cudnn/library/operation_graph.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd::models::cudnn {
namespace {

// The values of a group have ids from 1 on. Tensors between the cuDNN operations that make up one Operation have ids
// from kBetweenUids on.
constexpr std::int64_t kBetweenUids = 30'000;

cudnnDataType_t cudnn_type(DataType type) {
  switch (type) {
    case DataType::kF32: return CUDNN_DATA_FLOAT;
    case DataType::kF16: return CUDNN_DATA_HALF;
    case DataType::kBF16: return CUDNN_DATA_BFLOAT16;
    default: break;
  }
  throw Error(Errc::kUnsupported, "cuDNN groups have fp32, fp16 and bf16 values, not " + std::string(hvd::name(type)));
}

std::map<ValueId, std::int64_t> uids(const Group& group) {
  std::map<ValueId, std::int64_t> ids;
  for (const Operation& operation : group.operations) {
    for (const auto* list : {&operation.inputs, &operation.outputs}) {
      for (const ValueId id : *list) ids.emplace(id, static_cast<std::int64_t>(ids.size()) + 1);
    }
  }
  return ids;
}

class OperationGraphBuilder {
 public:
  OperationGraphBuilder(const Library& library, const Program& program, const Group& group,
                        std::vector<Descriptor>& parts, std::vector<Descriptor>& operations)
      : library_(library),
        program_(program),
        group_(group),
        uids_(uids(group)),
        parts_(parts),
        operations_(operations) {
    // cuDNN copies the handles, and a Descriptor that is moved keeps its handle, so `operations` may reallocate.
    for (const Operation& operation : group.operations) add(operation);
  }

 private:
  using Dims = std::array<std::int64_t, 4>;

  Descriptor tensor(std::int64_t uid, DataType type, const Dims& dims, const Dims& strides, std::int64_t alignment,
                    bool is_virtual) {
    Descriptor made(library_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, cudnn_type(type));
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
    made.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
    if (is_virtual) made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
    made.finalize("tensor");
    return made;
  }

  /// Returns the tensor of value `id`, which the first call makes.
  const Descriptor& value(ValueId id) {
    const std::int64_t uid = uids_.at(id);
    if (const auto found = tensors_.find(uid); found != tensors_.end()) return parts_[found->second];
    const Value& value = program_.value(id);
    const Placement place = placement(program_, id);
    const std::int64_t bytes = place.offset * static_cast<std::int64_t>(size_of(value.type));
    Dims dims{1, value.shape[0], 1, 1};
    Dims strides{value.shape[0], 1, value.shape[0], value.shape[0]};
    if (value.shape.rank() == 4) {
      dims = {value.shape[0], value.shape[3], value.shape[1], value.shape[2]};
      strides = {value.shape[1] * value.shape[2] * place.channels, 1, value.shape[2] * place.channels, place.channels};
    } else {
      HVD_ASSERT(value.shape.rank() == 1);
    }
    return keep(uid, tensor(uid, value.type, dims, strides, std::gcd(bytes, kWidestAlignment), inside(group_, id)));
  }

  /// Makes an fp32 tensor, with the shape of value `id`, that connects two cuDNN operations of one Operation.
  const Descriptor& between(ValueId id) {
    const Shape& shape = program_.value(id).shape;
    const std::int64_t uid = kBetweenUids + static_cast<std::int64_t>(tensors_.size());
    const Dims dims{shape[0], shape[3], shape[1], shape[2]};
    const Dims strides{shape[1] * shape[2] * shape[3], 1, shape[2] * shape[3], shape[3]};
    return keep(uid, tensor(uid, DataType::kF32, dims, strides, kWidestAlignment, true));
  }

  const Descriptor& keep(std::int64_t uid, Descriptor made) {
    tensors_[uid] = parts_.size();
    return keep(std::move(made));
  }
  const Descriptor& keep(Descriptor made) {
    HVD_ASSERT(parts_.size() < parts_.capacity());  // callers keep references into `parts_`
    parts_.push_back(std::move(made));
    return parts_.back();
  }

  void done(Descriptor operation, const char* what) {
    operation.finalize(what);
    operations_.push_back(std::move(operation));
  }

  const Descriptor& convolution(const Window& w) {
    Descriptor made(library_, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const auto pair = [](std::int64_t h, std::int64_t v) { return std::array<std::int64_t, 2>{h, v}; };
    constexpr auto kMode = CUDNN_CROSS_CORRELATION;
    made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2});
    made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &kMode);
    made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, pair(w.pad_top, w.pad_left));
    made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, pair(w.pad_bottom, w.pad_right));
    made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, pair(1, 1));
    made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, pair(w.stride_h, w.stride_w));
    made.finalize("convolution");
    return keep(std::move(made));
  }

  void product(const Operation& operation) {
    const Descriptor& window = convolution(std::get<Window>(operation.attr));
    const ValueId a = operation.inputs[0];
    const ValueId b = operation.inputs[1];
    const ValueId result = operation.outputs[0];
    if (operation.type == OpType::kConv) {
      Descriptor made(library_, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, window);
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, value(a));
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, value(b));
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, value(result));
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 1.0F);
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 0.0F);
      return done(std::move(made), "conv");
    }
    if (operation.type == OpType::kConvBackwardData) {
      Descriptor made(library_, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, window);
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, value(a));
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, value(b));
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, value(result));
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 1.0F);
      made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 0.0F);
      return done(std::move(made), "dgrad");
    }
    Descriptor made(library_, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, window);
    made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, value(a));
    made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, value(b));
    made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, value(result));
    made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 1.0F);
    made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 0.0F);
    done(std::move(made), "wgrad");
  }

  Descriptor pointwise(cudnnPointwiseMode_t mode) {
    Descriptor kind(library_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    kind.finalize("pointwise");
    Descriptor made(library_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, keep(std::move(kind)));
    return made;
  }
  void binary(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor& b, const Descriptor& y) {
    Descriptor made = pointwise(mode);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    done(std::move(made), "pointwise operation");
  }
  void relu(const Operation& operation) {
    Descriptor made = pointwise(CUDNN_POINTWISE_RELU_FWD);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, value(operation.inputs[0]));
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, value(operation.outputs[0]));
    done(std::move(made), "relu");
  }
  void relu_backward(const Operation& operation) {
    Descriptor made = pointwise(CUDNN_POINTWISE_RELU_BWD);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, value(operation.inputs[0]));
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, value(operation.inputs[1]));
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, value(operation.outputs[0]));
    done(std::move(made), "relu backward");
  }
  // Splits (x - mean) * inv_std * gamma + beta into four operations. The engine for a data gradient with a batch norm's
  // sums accepts only this form (cuDNN 9.19).
  void norm_apply(const Operation& operation) {
    const ValueId result = operation.outputs[0];
    const Descriptor& centred = between(result);
    const Descriptor& normal = between(result);
    const Descriptor& scaled = between(result);
    binary(CUDNN_POINTWISE_SUB, value(operation.inputs[0]), value(operation.inputs[1]), centred);
    binary(CUDNN_POINTWISE_MUL, centred, value(operation.inputs[2]), normal);
    binary(CUDNN_POINTWISE_MUL, normal, value(operation.inputs[3]), scaled);
    binary(CUDNN_POINTWISE_ADD, scaled, value(operation.inputs[4]), value(result));
  }

  void statistics(const Operation& operation) {
    Descriptor made(library_, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    constexpr auto kMode = CUDNN_GENSTATS_SUM_SQSUM;
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &kMode);
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, value(operation.inputs[0]));
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, value(operation.outputs[0]));
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, value(operation.outputs[1]));
    done(std::move(made), "statistics");
  }

  void norm_backward_weights(const Operation& operation) {
    Descriptor made(library_, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_DATA_FLOAT);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, value(operation.inputs[0]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, value(operation.inputs[1]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, value(operation.inputs[2]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, value(operation.inputs[3]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, value(operation.inputs[4]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, value(operation.outputs[0]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, value(operation.outputs[1]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, value(operation.outputs[2]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, value(operation.outputs[3]));
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, value(operation.outputs[4]));
    done(std::move(made), "batch norm backward sums");
  }

  void add(const Operation& operation) {
    switch (operation.type) {
      case OpType::kConv:
      case OpType::kConvBackwardData:
      case OpType::kConvBackwardWeights: return product(operation);
      case OpType::kBias:
      case OpType::kAdd:
        HVD_ASSERT(operation.inputs.size() == 2);
        return binary(CUDNN_POINTWISE_ADD, value(operation.inputs[0]), value(operation.inputs[1]),
                      value(operation.outputs[0]));
      case OpType::kNormApply: return norm_apply(operation);
      case OpType::kRelu: return relu(operation);
      case OpType::kReluBackward: return relu_backward(operation);
      case OpType::kStatistics: return statistics(operation);
      case OpType::kNormBackwardWeights: return norm_backward_weights(operation);
      default: break;
    }
    throw Error(Errc::kUnsupported, "cuDNN groups cannot hold the operation " + std::string(name(operation.type)));
  }

  const Library& library_;
  const Program& program_;
  const Group& group_;
  std::map<ValueId, std::int64_t> uids_;
  std::map<std::int64_t, std::size_t> tensors_;  // by uid: index into parts_
  std::vector<Descriptor>& parts_;
  std::vector<Descriptor>& operations_;
};

// Upper bound for the descriptors of one Operation: tensors, windows and pointwise descriptors. kNormApply has the
// most: nine tensors and four pointwise descriptors.
constexpr std::size_t kPartsPerOperation = 16;

}  // namespace

std::vector<Binding> bindings(const Group& group) {
  std::vector<Binding> result;
  for (const auto& [value, uid] : uids(group)) {
    if (!inside(group, value)) result.push_back({.uid = uid, .value = value});
  }
  std::sort(result.begin(), result.end(), [](const Binding& a, const Binding& b) { return a.uid < b.uid; });
  return result;
}

OperationGraph::OperationGraph(const Library& library, const Program& program, const Group& group, cudnnHandle_t handle)
    : graph_(library, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  parts_.reserve(kPartsPerOperation * group.operations.size());
  // The constructor fills parts_ and operations_.
  [[maybe_unused]] const OperationGraphBuilder builder(library, program, group, parts_, operations_);
  if (handle != nullptr) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations_);
  graph_.finalize("operation graph");
}

}  // namespace hvd::models::cudnn
