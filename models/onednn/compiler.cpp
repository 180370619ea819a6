#include "models/onednn/compiler.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/graph/cost.h"
#include "models/onednn/host_arena.h"
#include "models/onednn/kernels.h"
#include "models/onednn/layer_plans.h"

namespace hvd::models::onednn {

Compiler::Compiler(const Graph& graph, const CompileOptions& options, PrimitiveProgram& program, Parameters& parameters)
    : graph_(graph),
      options_(options),
      program_(program),
      parameters_(parameters),
      type_(options.compute == DataType::kBF16 ? Type::bf16 : Type::f32),
      values_(graph.tensors.size()) {}

Compiler::~Compiler() = default;

void Compiler::compile() {
  decide_fusions();
  unfinished_.assign(graph_.tensors.size(), false);
  program_.keep_all(options_.keep_tensors);
  Buffer* images = program_.new_buffer("images", 0, Buffer::Storage::kExternal);
  const Shape& image_shape = shape(graph_.images);
  set_value(graph_.images,
            {images, Md({image_shape[0], image_shape[3], image_shape[1], image_shape[2]}, Type::f32, Tag::nhwc)});
  images_ = images;
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (i == graph_.first_backward) running_statistics();
    if (skipped_[i]) continue;
    require_address_space();
    compile_node(static_cast<NodeId>(i));
  }
}

void Compiler::compile_node(NodeId id) {
  switch (node(id).kind) {
    case OpKind::kConv: return conv(id);
    case OpKind::kBatchNorm: return norm(id);
    case OpKind::kRelu: return relu_node(id);
    case OpKind::kMaxPool:
    case OpKind::kAvgPool:
    case OpKind::kGlobalAvgPool: return pool(id);
    case OpKind::kFullyConnected: return linear(id);
    case OpKind::kAdd: return add_node(id);
    case OpKind::kConcat: return concat(id);
    case OpKind::kDropout: return dropout_node(id);
    case OpKind::kSoftmaxCrossEntropy: return loss(id);
    case OpKind::kConvBackwardWeights: return conv_backward_weights_node(id);
    case OpKind::kConvBackwardData: return conv_backward_data_node(id);
    case OpKind::kBatchNormBackward: return norm_backward_node(id);
    case OpKind::kReluBackward: return relu_backward(id);
    case OpKind::kMaxPoolBackward:
    case OpKind::kAvgPoolBackward:
    case OpKind::kGlobalAvgPoolBackward: return pool_backward_node(id);
    case OpKind::kFullyConnectedBackwardWeights: return linear_backward_weights_node(id);
    case OpKind::kFullyConnectedBackwardData: return linear_backward_data_node(id);
    case OpKind::kConcatBackward: return concat_backward(id);
    case OpKind::kDropoutBackward: return dropout_backward(id);
    case OpKind::kSoftmaxCrossEntropyBackward: return loss_backward(id);
    case OpKind::kAccumulate: return accumulate(id);
  }
  throw Error(Errc::kUnsupported, "oneDNN backend: no implementation of " + std::string(name(node(id).kind)));
}

TensorView& Compiler::value(TensorId id) {
  TensorView& view = values_.at(static_cast<std::size_t>(id));
  HVD_ASSERT(view);
  return view;
}

void Compiler::set_value(TensorId id, const TensorView& value) {
  values_.at(static_cast<std::size_t>(id)) = value;
  holders_[value.buffer].push_back(id);
}

TensorView Compiler::tensor(TensorId id) const {
  const auto index = static_cast<std::size_t>(id);
  return unfinished_.at(index) ? TensorView{} : values_.at(index);
}

bool Compiler::is_winograd(NodeId forward) const {
  return std::string_view(convs_.at(forward)->forward.impl_info_str()).find("wino") != std::string_view::npos;
}

TensorView Compiler::in_layout(TensorId id, const Md& wanted) {
  const TensorView& base = value(id);
  if (base.desc == wanted) return base;
  for (const TensorView& copy : copies_[id]) {
    if (copy.desc == wanted) return copy;
  }
  const TensorView copy = program_.new_value(graph_.tensor(id).name + ":copy", wanted);
  program_.append(program_.reorder(graph_.tensor(id).name, base, copy));
  copies_[id].push_back(copy);
  return copy;
}

Md Compiler::any_layout(const Shape& shape, Type type) const {
  if (shape.rank() == 2) return {{shape[0], shape[1]}, type, Tag::any};
  return {{shape[0], shape[3], shape[1], shape[2]}, type, Tag::any};
}

Md Compiler::channels_first(const Shape& shape, Type type) const {
  if (shape.rank() == 2) return {{shape[0], shape[1]}, type, Tag::nc};
  return {{shape[0], shape[3], shape[1], shape[2]}, type, Tag::nchw};
}

Md Compiler::channels_last(const Shape& shape, Type type) const {
  if (shape.rank() == 2) return {{shape[0], shape[1]}, type, Tag::nc};
  return {{shape[0], shape[3], shape[1], shape[2]}, type, Tag::nhwc};
}

Md Compiler::preferred(const Shape& shape) const {
  return type_ == Type::bf16 ? channels_last(shape, type_) : any_layout(shape, type_);
}

bool Compiler::last_use(const Buffer* buffer, NodeId at) const {
  if (options_.keep_tensors || buffer->storage != Buffer::Storage::kPlanned) return false;
  const auto holders = holders_.find(buffer);
  if (holders == holders_.end()) return false;
  return std::all_of(holders->second.begin(), holders->second.end(), [&](TensorId id) {
    const auto& readers = consumers_[static_cast<std::size_t>(id)];
    return std::all_of(readers.begin(), readers.end(), [&](NodeId reader) { return reader <= at; });
  });
}

TensorView Compiler::output(TensorId id, const Md& desc, const std::vector<TensorView>& reusable, NodeId at) {
  for (const TensorView& candidate : reusable) {
    if (candidate.buffer->bytes == desc.get_size() && last_use(candidate.buffer, at)) {
      const TensorView placed{candidate.buffer, desc};
      set_value(id, placed);
      return placed;
    }
  }
  const TensorView fresh = program_.new_value(graph_.tensor(id).name, desc);
  set_value(id, fresh);
  return fresh;
}

BoundOperation& Compiler::describe(BoundOperation& operation, NodeId id) const {
  const Node& graph_node = node(id);
  const NodeCost work = cost(graph_, graph_node, type_ == Type::bf16 ? 2 : 4);
  operation.node = graph_node.name;
  operation.kind = std::string(name(graph_node.kind));
  operation.flops = work.flops;
  operation.bytes = work.bytes;
  return operation;
}

BoundOperation& Compiler::primitive(NodeId id, const dnnl::primitive_desc_base& pd, const dnnl::primitive& made,
                                    std::vector<Argument> arguments) {
  BoundOperation operation{.implementation = pd.impl_info_str(), .library = true};
  describe(operation, id);
  operation.primitive = made;
  operation.arguments = std::move(arguments);
  if (const Md scratch = pd.query_md(dnnl::query::scratchpad_md); scratch.get_size() > 0) {
    operation.arguments.push_back({DNNL_ARG_SCRATCHPAD, program_.scratchpad(scratch)});
  }
  return program_.append(std::move(operation));
}

BoundOperation& Compiler::kernel(NodeId id, std::vector<Buffer*> touches, std::function<void(StepInput&)> body) {
  BoundOperation operation{.implementation = "own"};
  describe(operation, id);
  operation.touches = std::move(touches);
  operation.kernel = std::move(body);
  return program_.append(std::move(operation));
}

TensorView Compiler::gradient_target(TensorId gradient, const Md& desc, Type type) {
  const Type arena = parameters_.gradient_type() == DataType::kBF16 ? Type::bf16 : Type::f32;
  if (type == arena) return parameters_.gradient(gradient, desc);
  return program_.new_value(graph_.tensor(gradient).name + ":wide", desc);
}

void Compiler::finish_gradients(NodeId id, const std::vector<std::pair<TensorId, TensorView>>& written) {
  for (const auto& [gradient, from] : written) {
    const TensorView slot = parameters_.gradient(gradient, from.desc);
    if (slot.buffer == from.buffer) continue;
    // Here the gradient is fp32 and the arena is bf16. A bf16 gradient with an fp32 arena does not occur.
    const std::size_t count = from.desc.get_size() / sizeof(float);
    Buffer* source = from.buffer;
    Buffer* target = slot.buffer;
    kernel(id, {source, target}, [source, target, count](StepInput&) {
      to_bf16(reinterpret_cast<const float*>(source->data), reinterpret_cast<std::uint16_t*>(target->data), count);
    });
  }
  BoundOperation& last = program_.last();
  for (const auto& entry : written) last.final_gradients.push_back(parameters_.index_of_gradient(entry.first));
}

}  // namespace hvd::models::onednn
