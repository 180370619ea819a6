// lower(), and the parts of ProgramBuilder that forward.cpp and backward.cpp share: values, readers of tensors, drafts
// of groups.
#include "models/cudnn/lowering/lowering.h"

#include <algorithm>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/cudnn/lowering/program_builder.h"

namespace hvd::models::cudnn {

std::string text(const FusionOptions& fusion) {
  return "level " + std::to_string(fusion.level) + ", prologues none, own norms rectifying, images " +
         (fusion.images == ImageLayout::kPadded ? "padded" : "as columns");
}

std::vector<FusionOptions> worth_timing(const FusionOptions& first) {
  std::vector<FusionOptions> list{first};
  if (first.level < 2) return list;
  FusionOptions less = first;
  less.level = 1;
  list.push_back(less);
  return list;
}

std::string_view name(ComputeType type) noexcept {
  switch (type) {
    case ComputeType::kFp32: return "fp32";
    case ComputeType::kTf32: return "tf32";
    case ComputeType::kFp16: return "fp16";
    case ComputeType::kBf16: return "bf16";
  }
  return "unknown";
}

DataType storage(ComputeType type) noexcept {
  switch (type) {
    case ComputeType::kFp16: return DataType::kF16;
    case ComputeType::kBf16: return DataType::kBF16;
    case ComputeType::kFp32:
    case ComputeType::kTf32: break;
  }
  return DataType::kF32;
}

std::int64_t image_channels_multiple(ComputeType type) noexcept {
  constexpr std::int64_t kBytes = 16;
  return type == ComputeType::kFp32 ? 1 : kBytes / static_cast<std::int64_t>(size_of(storage(type)));
}

ProgramBuilder::ProgramBuilder(const Graph& graph, const LoweringOptions& options, EngineOracle& oracle)
    : graph_(graph),
      options_(options),
      oracle_(oracle),
      readers_(graph.tensors.size()),
      value_of_(graph.tensors.size(), kNoValue),
      done_(graph.nodes.size(), false) {
  program_.model = graph.model;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const TensorId input : graph.nodes[i].inputs) {
      readers_[static_cast<std::size_t>(input)].push_back(static_cast<NodeId>(i));
    }
  }
  add_arena_values();
  for (std::size_t i = 0; i < graph.first_backward; ++i) {
    const Node& norm = graph.nodes[i];
    if (norm.kind != OpKind::kBatchNorm) continue;
    for (const TensorId vector : {norm.inputs[1], norm.inputs[2]}) {
      program_.values[static_cast<std::size_t>(value_of(vector))].type = DataType::kF32;
    }
  }
  if (options_.fusion.level >= 1) plan_slices();
}

Program ProgramBuilder::run() && {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    if (is_done(id)) continue;
    if (i < graph_.first_backward) {
      forward(id);
    } else {
      backward(id);
    }
    done_[i] = true;
  }
  launch_casts();
  return std::move(program_);
}

ValueId ProgramBuilder::add_value(Value value) {
  program_.values.push_back(std::move(value));
  return static_cast<ValueId>(program_.values.size() - 1);
}

void ProgramBuilder::add_arena_values() {
  for (std::size_t i = 0; i < graph_.tensors.size(); ++i) {
    const TensorDesc& tensor = graph_.tensors[i];
    Value value{.name = tensor.name, .tensor = static_cast<TensorId>(i), .shape = tensor.shape};
    switch (tensor.role) {
      case TensorRole::kInput:
        value.storage = Storage::kImages;
        value.type = storage_type();
        if (pads_images(value.tensor)) {
          const Padded images = add_padded(std::move(value));
          padded_[static_cast<TensorId>(i)] = images.whole;
          value_of_[i] = images.own;
          continue;
        }
        break;
      case TensorRole::kLabel:
        value.storage = Storage::kLabels;
        value.type = DataType::kI32;
        break;
      case TensorRole::kParameter:
        value.storage = Storage::kParameter;
        value.type = storage_type();
        break;
      case TensorRole::kState: value.storage = Storage::kState; break;
      case TensorRole::kGradient:
        value.storage = Storage::kGradient;
        value.type = options_.gradient;
        break;
      default: continue;  // tensors of other roles get a value when a group that writes them is drafted
    }
    value_of_[i] = add_value(std::move(value));
  }
}

// Stores a concatenation as one value and its inputs as slices of that value. If a tensor is an input twice, only its
// first occurrence becomes a slice.
void ProgramBuilder::plan_slices() {
  for (std::size_t i = 0; i < graph_.first_backward; ++i) {
    const Node& concat = graph_.nodes[i];
    if (concat.kind != OpKind::kConcat) continue;
    const TensorId y = concat.outputs[0];
    value_of_[static_cast<std::size_t>(y)] =
        add_value({.name = graph_.tensor(y).name, .tensor = y, .shape = shape(y), .type = storage_type()});
    std::int64_t channel = 0;
    for (const TensorId input : concat.inputs) {
      const bool made_here = graph_.tensor(input).role == TensorRole::kActivation && !has_value(input);
      if (made_here) slices_.try_emplace(input, Slice{.parent = value_of(y), .channel = channel});
      channel += shape(input)[3];
    }
  }
}

ValueId ProgramBuilder::value_of(TensorId id) const {
  const ValueId value = value_of_.at(static_cast<std::size_t>(id));
  HVD_ASSERT(value != kNoValue);
  return value;
}

NodeId ProgramBuilder::only_forward_reader(TensorId id, OpKind kind) const {
  NodeId only = kNoNode;
  for (const NodeId reader : readers(id)) {
    if (is_backward(node(reader).kind)) continue;
    if (only != kNoNode) return kNoNode;
    only = reader;
  }
  return only != kNoNode && node(only).kind == kind ? only : kNoNode;
}

NodeId ProgramBuilder::only_reader(TensorId id, OpKind kind) const {
  const auto& all = readers(id);
  return all.size() == 1 && node(all[0]).kind == kind ? all[0] : kNoNode;
}

Draft ProgramBuilder::draft(Provider provider, int level, NodeId at) const {
  Draft draft;
  draft.group.provider = provider;
  draft.group.level = level;
  draft.at = at;
  draft.values_before = program_.values.size();
  return draft;
}

void ProgramBuilder::operate(Draft& draft, OpType type, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                             NodeId node, bool again) {
  draft.group.operations.push_back({.type = type,
                                    .inputs = std::move(inputs),
                                    .outputs = std::move(outputs),
                                    .attr = {},
                                    .node = node,
                                    .again = again});
}

void ProgramBuilder::operate_with_attr(Draft& draft, OpType type, std::vector<ValueId> inputs,
                                       std::vector<ValueId> outputs, NodeId id) {
  operate(draft, type, std::move(inputs), std::move(outputs), id);
  draft.group.operations.back().attr = node(id).attr;
}

ValueId ProgramBuilder::inside_value(const std::string& name, const Shape& shape, DataType type) {
  return add_value({.name = name, .shape = shape, .type = type});
}

ValueId ProgramBuilder::output(Draft& draft, TensorId id, bool sliced) {
  const TensorDesc& tensor = graph_.tensor(id);
  ValueId value = kNoValue;
  if (tensor.role == TensorRole::kGradient) {
    value = value_of(id);
  } else {
    const bool vector = tensor.role == TensorRole::kStatistic || tensor.role == TensorRole::kLoss;
    Value made{
        .name = tensor.name, .tensor = id, .shape = tensor.shape, .type = vector ? DataType::kF32 : storage_type()};
    const auto slice = slices_.find(id);
    if (sliced && slice != slices_.end()) {
      made.parent = slice->second.parent;
      made.channel = slice->second.channel;
    }
    value = add_value(std::move(made));
    draft.bound.emplace_back(id, value);
  }
  draft.group.writes.push_back(value);
  return value;
}

ValueId ProgramBuilder::extra_output(Draft& draft, const std::string& name, const Shape& shape, DataType type) {
  const ValueId value = add_value({.name = name, .shape = shape, .type = type});
  draft.group.writes.push_back(value);
  return value;
}

ValueId ProgramBuilder::summand(Draft& draft, TensorId id) {
  const auto found = unapplied_.find(id);
  return found == unapplied_.end() ? operand(id) : applied_again(draft, found->second, false);
}

ValueId ProgramBuilder::applied_again(Draft& draft, NodeId norm, bool again) {
  const Node& norm_node = node(norm);
  const NormVectors& vectors = norms_.at(norm);
  const ValueId value = inside_value(norm_node.name + ":applied", shape(norm_node.outputs[0]));
  operate(draft, OpType::kNormApply,
          {value_of(norm_node.inputs[0]), vectors.mean, vectors.inv_std, value_of(norm_node.inputs[1]),
           value_of(norm_node.inputs[2])},
          {value}, norm, again);
  return value;
}

std::string ProgramBuilder::refusal(const Draft& draft) {
  switch (draft.group.provider) {
    case Provider::kCudnn: return oracle_.refusal(program_, draft.group);
    case Provider::kOwn: return own_kernel(draft.group).empty() ? "no kernel of ours does this" : "";
    case Provider::kCublasLt: return {};
  }
  return {};
}

void ProgramBuilder::take_back(const Draft& draft) { program_.values.resize(draft.values_before); }

void ProgramBuilder::record(const Draft& draft, std::string why) {
  program_.fallbacks.push_back(
      {.node = draft.at, .level = draft.group.level, .wanted = operations_text(draft.group), .why = std::move(why)});
}

bool ProgramBuilder::offer(Draft& draft) {
  if (std::string why = refusal(draft); !why.empty()) {
    HVD_ASSERT(draft.group.provider != Provider::kOwn);  // our kernels run every group that is drafted for them
    record(draft, std::move(why));
    take_back(draft);
    return false;
  }
  commit(draft);
  return true;
}

void ProgramBuilder::commit(Draft& draft) {
  HVD_ASSERT(draft.group.provider != Provider::kOwn || !own_kernel(draft.group).empty());
  for (const NodeId id : draft.done) done_[static_cast<std::size_t>(id)] = true;
  for (const auto& [tensor, value] : draft.bound) {
    if (graph_.tensor(tensor).role == TensorRole::kDiff) {
      bind_diff(tensor, value);
    } else {
      value_of_[static_cast<std::size_t>(tensor)] = value;
    }
  }
  program_.groups.push_back(std::move(draft.group));
}

ValueId ProgramBuilder::packed(ValueId id, NodeId at) {
  if (program_.value(id).parent == kNoValue) return id;
  Draft copy = draft(Provider::kOwn, 0, at);
  const Value sliced = program_.value(id);
  const ValueId value = extra_output(copy, sliced.name + ":packed", sliced.shape, sliced.type);
  operate(copy, OpType::kCopy, {id}, {value}, at);
  commit(copy);
  return value;
}

Program lower(const Graph& graph, const LoweringOptions& options, EngineOracle& oracle) {
  if (graph.first_backward == graph.nodes.size()) {
    throw Error(Errc::kInvalidArgument, graph.model + ": the graph must be differentiated first");
  }
  if (options.fusion.level < 0 || options.fusion.level > 2) {
    throw Error(Errc::kInvalidArgument,
                "fusion level " + std::to_string(options.fusion.level) + " does not exist; choose 0, 1 or 2");
  }
  return ProgramBuilder(graph, options, oracle).run();
}

}  // namespace hvd::models::cudnn
