// The forward half of ProgramBuilder: forward() calls one function per kind of node.
#include <algorithm>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/cudnn/lowering/program_builder.h"

namespace hvd::models::cudnn {

void ProgramBuilder::forward(NodeId id) {
  switch (node(id).kind) {
    case OpKind::kConv: return conv(id);
    case OpKind::kBatchNorm: return norm(id);
    case OpKind::kAdd: return add(id);
    case OpKind::kRelu: return pointwise(id, OpType::kRelu);
    case OpKind::kDropout: return pointwise(id, OpType::kDropout);
    case OpKind::kMaxPool: return pool(id, OpType::kMaxPool);
    case OpKind::kAvgPool: return pool(id, OpType::kAvgPool);
    case OpKind::kGlobalAvgPool: return pool(id, OpType::kGlobalAvgPool);
    case OpKind::kFullyConnected: return linear(id);
    case OpKind::kConcat: return concat(id);
    case OpKind::kSoftmaxCrossEntropy: return loss(id);
    default: HVD_ASSERT(!"not a forward node");
  }
}

// Returns the forms that the launch of convolution `id` may have, from the most fused form to the unfused convolution.
std::vector<ProgramBuilder::ConvForm> ProgramBuilder::conv_forms(NodeId id) const {
  const Node& conv = node(id);
  const bool bias = conv.inputs.size() > 2;
  std::vector<ConvForm> forms;
  if (options_.fusion.level >= 2 && !bias && only_forward_reader(conv.outputs[0], OpKind::kBatchNorm) != kNoNode) {
    forms.push_back({.statistics = true});
  }
  if (options_.fusion.level >= 1) {
    if (only_forward_reader(conv.outputs[0], OpKind::kRelu) != kNoNode) forms.push_back({.bias = bias, .relu = true});
    if (bias) forms.push_back({.bias = true});
  }
  forms.emplace_back();
  return forms;
}

Draft ProgramBuilder::conv_draft(NodeId id, const ConvForm& form, bool sliced) {
  const Node& conv = node(id);
  Draft made = draft(Provider::kCudnn, form.statistics ? 2 : form.bias || form.relu ? 1 : 0, id);
  const TensorId y = conv.outputs[0];
  const bool bias_left = conv.inputs.size() > 2 && !form.bias;
  ValueId result = kNoValue;
  if (form.bias || form.relu) {
    result = inside_value(conv.name + ":product", shape(y));
  } else if (bias_left) {
    result = extra_output(made, conv.name + ":product", shape(y), storage_type());
  } else {
    result = output(made, y, sliced);
  }
  operate_with_attr(made, OpType::kConv, {operand(conv.inputs[0]), operand(conv.inputs[1])}, {result}, id);
  if (form.bias) {
    const ValueId sum = form.relu ? inside_value(conv.name + ":biased", shape(y)) : output(made, y, sliced);
    operate(made, OpType::kBias, {result, value_of(conv.inputs[2])}, {sum}, id);
    result = sum;
  }
  if (form.relu) {
    const NodeId relu = only_forward_reader(y, OpKind::kRelu);
    operate(made, OpType::kRelu, {result}, {output(made, node(relu).outputs[0], sliced)}, relu);
    made.done.push_back(relu);
  }
  if (form.statistics) {
    const NodeId norm = only_forward_reader(y, OpKind::kBatchNorm);
    const Shape channels{shape(y)[3]};
    const ValueId sum = extra_output(made, node(norm).name + ":sum", channels, DataType::kF32);
    const ValueId square_sum = extra_output(made, node(norm).name + ":square_sum", channels, DataType::kF32);
    operate(made, OpType::kStatistics, {result}, {sum, square_sum}, norm);
  }
  return made;
}

void ProgramBuilder::conv(NodeId id) {
  const Node& conv = node(id);
  if (multiplies_columns(id)) return columns_conv(id);
  pad_weight(id);
  for (const ConvForm& form : conv_forms(id)) {
    const TensorId last =
        form.relu ? node(only_forward_reader(conv.outputs[0], OpKind::kRelu)).outputs[0] : conv.outputs[0];
    for (const bool sliced : {true, false}) {
      if (!sliced && !slices_.contains(last)) continue;
      Draft made = conv_draft(id, form, sliced);
      if (form.statistics) {
        const std::vector<ValueId>& sums = made.group.operations.back().outputs;
        const NodeId norm = only_forward_reader(conv.outputs[0], OpKind::kBatchNorm);
        const NormVectors vectors{.sum = sums[0], .square_sum = sums[1]};
        if (!offer(made)) continue;
        norms_[norm] = vectors;
        return;
      }
      const bool bias_left = conv.inputs.size() > 2 && !form.bias;
      const ValueId product = bias_left ? made.group.writes.back() : kNoValue;
      if (!offer(made)) continue;
      if (bias_left) own_bias(id, product);
      return;
    }
  }
  refuse_convolution(id, "convolution");
}

void ProgramBuilder::refuse_convolution(NodeId id, const char* what) const {
  const Node& convolution = node(id);
  throw Error(Errc::kUnsupported, graph_.model + ", " + convolution.name + ": cuDNN has no engine for this " + what +
                                      ", " + shape(convolution.inputs[0]).text() + " by " +
                                      shape(convolution.inputs[1]).text() + ", in " +
                                      std::string(name(options_.compute)) + " (" + program_.fallbacks.back().why +
                                      "); try another --dtype");
}

void ProgramBuilder::own_bias(NodeId id, ValueId x) {
  const Node& layer = node(id);
  const NodeId relu = options_.fusion.level >= 1 ? only_forward_reader(layer.outputs[0], OpKind::kRelu) : kNoNode;
  Draft made = draft(Provider::kOwn, relu == kNoNode ? 0 : 1, id);
  ValueId result =
      relu == kNoNode ? output(made, layer.outputs[0]) : inside_value(layer.name + ":biased", shape(layer.outputs[0]));
  operate(made, OpType::kBias, {x, value_of(layer.inputs[2])}, {result}, id);
  if (relu != kNoNode) {
    operate(made, OpType::kRelu, {result}, {output(made, node(relu).outputs[0])}, relu);
    made.done.push_back(relu);
  }
  commit(made);
}

void ProgramBuilder::norm(NodeId id) {
  const Node& norm = node(id);
  if (norms_.contains(id)) return finalize(id, 2);
  const TensorId y = norm.outputs[0];
  const NodeId add = options_.fusion.level >= 1 ? only_forward_reader(y, OpKind::kAdd) : kNoNode;
  if (add != kNoNode) {
    // If this norm's output is the later of a sum's two operands, add() applies the norm, because the other operand
    // exists when the norm is reached.
    const auto& operands = node(add).inputs;
    const bool last = std::all_of(operands.begin(), operands.end(), [&](TensorId operand) { return operand <= y; });
    if (last && operands[0] != operands[1]) return;  // add() makes the norm's statistics and applies the norm
  }
  if (options_.fusion.level == 0) statistics(id);
  finalize(id, options_.fusion.level >= 1 ? 1 : 0);
}

void ProgramBuilder::statistics(NodeId id) {
  const Node& norm = node(id);
  Draft made = draft(Provider::kOwn, 0, id);
  const Shape channels{shape(norm.outputs[0])[3]};
  const ValueId sum = extra_output(made, norm.name + ":sum", channels, DataType::kF32);
  const ValueId square_sum = extra_output(made, norm.name + ":square_sum", channels, DataType::kF32);
  operate(made, OpType::kStatistics, {value_of(norm.inputs[0])}, {sum, square_sum}, id);
  commit(made);
  norms_[id] = {.sum = sum, .square_sum = square_sum};
}

// Makes the vectors of batch norm `id`, and its statistics if they do not exist yet. Applies the norm unless a sum will
// apply the norm.
void ProgramBuilder::finalize(NodeId id, int level) {
  const Node& norm = node(id);
  NormVectors& vectors = norms_[id];
  const Shape channels{shape(norm.outputs[0])[3]};
  Draft made = draft(Provider::kOwn, level, id);
  if (vectors.sum == kNoValue) {
    vectors.sum = inside_value(norm.name + ":sum", channels, DataType::kF32);
    vectors.square_sum = inside_value(norm.name + ":square_sum", channels, DataType::kF32);
    operate(made, OpType::kStatistics, {value_of(norm.inputs[0])}, {vectors.sum, vectors.square_sum}, id);
  }
  vectors.mean = output(made, norm.outputs[1]);
  vectors.inv_std = output(made, norm.outputs[2]);
  const ValueId scale = extra_output(made, norm.name + ":scale", channels, storage_type());
  const ValueId shift = extra_output(made, norm.name + ":shift", channels, storage_type());
  operate_with_attr(made, OpType::kNormFinalize,
                    {vectors.sum, vectors.square_sum, value_of(norm.inputs[1]), value_of(norm.inputs[2]),
                     value_of(norm.inputs[3]), value_of(norm.inputs[4])},
                    {vectors.mean, vectors.inv_std, scale, shift}, id);
  commit(made);

  const TensorId y = norm.outputs[0];
  const NodeId add = options_.fusion.level >= 1 ? only_forward_reader(y, OpKind::kAdd) : kNoNode;
  if (add == kNoNode) return apply_now(id);
  unapplied_[y] = id;
}

// Applies batch norm `id` in a launch that writes the norm's output y, or relu(y), to memory.
void ProgramBuilder::apply_now(NodeId id) {
  const TensorId y = node(id).outputs[0];
  const NodeId relu = options_.fusion.level >= 1 ? only_forward_reader(y, OpKind::kRelu) : kNoNode;
  Draft made = draft(Provider::kOwn, relu == kNoNode ? 0 : options_.fusion.level, id);
  const ValueId value = applied_again(made, id, false);
  if (relu != kNoNode) {
    operate(made, OpType::kRelu, {value}, {output(made, node(relu).outputs[0])}, relu);
    made.done.push_back(relu);
  } else {
    made.group.operations.back().outputs[0] = output(made, y);
  }
  unapplied_.erase(y);
  commit(made);
}

void ProgramBuilder::add(NodeId id) {
  const Node& add = node(id);
  const NodeId relu = options_.fusion.level >= 1 ? only_forward_reader(add.outputs[0], OpKind::kRelu) : kNoNode;
  for (std::size_t i = 0; i < 2; ++i) {
    const TensorId operand = add.inputs[i];
    const NodeId norm = graph_.tensor(operand).producer;
    if (has_value(operand) || unapplied_.contains(operand)) continue;
    // norm() did not apply this batch norm, so that the sum can apply it.
    const TensorId other = add.inputs[1 - i];
    if (unapplied_.contains(other)) apply_now(unapplied_.at(other));
    finalize(norm, 1);
  }
  const bool applies = unapplied_.contains(add.inputs[0]) || unapplied_.contains(add.inputs[1]);
  Draft made = draft(Provider::kOwn, applies ? options_.fusion.level : relu != kNoNode ? 1 : 0, id);
  const ValueId a = summand(made, add.inputs[0]);
  const ValueId b = summand(made, add.inputs[1]);
  const ValueId sum =
      relu == kNoNode ? output(made, add.outputs[0]) : inside_value(add.name + ":y", shape(add.outputs[0]));
  operate(made, OpType::kAdd, {a, b}, {sum}, id);
  if (relu != kNoNode) {
    operate(made, OpType::kRelu, {sum}, {output(made, node(relu).outputs[0])}, relu);
    made.done.push_back(relu);
  }
  commit(made);
}

void ProgramBuilder::pointwise(NodeId id, OpType type) {
  const Node& layer = node(id);
  Draft made = draft(Provider::kOwn, 0, id);
  operate_with_attr(made, type, {value_of(layer.inputs[0])}, {output(made, layer.outputs[0])}, id);
  commit(made);
}

void ProgramBuilder::pool(NodeId id, OpType type) {
  const Node& pool = node(id);
  Draft made = draft(Provider::kOwn, 0, id);
  std::vector<ValueId> outputs{output(made, pool.outputs[0])};
  if (type == OpType::kMaxPool) {
    where_[id] = extra_output(made, pool.name + ":where", shape(pool.outputs[0]), DataType::kU8);
    outputs.push_back(where_[id]);
  }
  operate_with_attr(made, type, {value_of(pool.inputs[0])}, std::move(outputs), id);
  commit(made);
}

void ProgramBuilder::linear(NodeId id) {
  const Node& linear = node(id);
  const TensorId y = linear.outputs[0];
  const ValueId x = packed(value_of(linear.inputs[0]), id);
  if (options_.fusion.level == 0) {
    Draft made = draft(Provider::kCublasLt, 0, id);
    const ValueId product = extra_output(made, linear.name + ":product", shape(y), storage_type());
    operate(made, OpType::kLinear, {x, value_of(linear.inputs[1])}, {product}, id);
    commit(made);
    return own_bias(id, product);
  }
  fused_product(id, x, value_of(linear.inputs[1]));
}

void ProgramBuilder::fused_product(NodeId id, ValueId x, ValueId w) {
  const Node& layer = node(id);
  const TensorId y = layer.outputs[0];
  const bool bias = layer.inputs.size() > 2;
  const NodeId relu = only_forward_reader(y, OpKind::kRelu);
  Draft made = draft(Provider::kCublasLt, 1, id);
  ValueId result = bias || relu != kNoNode ? inside_value(layer.name + ":product", shape(y)) : output(made, y);
  operate(made, OpType::kLinear, {x, w}, {result}, id);
  if (bias) {
    const ValueId biased = relu == kNoNode ? output(made, y) : inside_value(layer.name + ":biased", shape(y));
    operate(made, OpType::kBias, {result, value_of(layer.inputs[2])}, {biased}, id);
    result = biased;
  }
  if (relu != kNoNode) {
    operate(made, OpType::kRelu, {result}, {output(made, node(relu).outputs[0])}, relu);
    made.done.push_back(relu);
  }
  commit(made);
}

// Copies those inputs that no launch has written directly into a slice of the result.
void ProgramBuilder::concat(NodeId id) {
  const Node& concat = node(id);
  const TensorId y = concat.outputs[0];
  Draft made = draft(Provider::kOwn, 0, id);
  ValueId whole = kNoValue;
  if (has_value(y)) {
    whole = value_of(y);
  } else {  // at level 0, plan_slices() is not called
    whole = add_value({.name = graph_.tensor(y).name, .tensor = y, .shape = shape(y), .type = storage_type()});
    value_of_[static_cast<std::size_t>(y)] = whole;
  }
  std::int64_t channel = 0;
  for (const TensorId input : concat.inputs) {
    const ValueId from = value_of(input);
    const Value& value = program_.value(from);
    if (value.parent != whole || value.channel != channel) {
      const ValueId slice = add_value({.name = graph_.tensor(input).name + ":slice",
                                       .shape = shape(input),
                                       .type = storage_type(),
                                       .parent = whole,
                                       .channel = channel});
      made.group.writes.push_back(slice);
      operate(made, OpType::kCopy, {from}, {slice}, id);
    }
    channel += shape(input)[3];
  }
  if (made.group.operations.empty()) {
    program_.elided.push_back(id);
    return;
  }
  commit(made);
}

void ProgramBuilder::loss(NodeId id) {
  const Node& loss = node(id);
  Draft made = draft(Provider::kOwn, 0, id);
  const ValueId value = output(made, loss.outputs[0]);
  // Probabilities are fp32, because the backward pass subtracts one from them and divides them by the batch size.
  const ValueId probabilities =
      extra_output(made, loss.name + ":probabilities", shape(loss.outputs[1]), DataType::kF32);
  made.bound.emplace_back(loss.outputs[1], probabilities);
  operate_with_attr(made, OpType::kSoftmaxCrossEntropy, {value_of(loss.inputs[0]), value_of(loss.inputs[1])},
                    {value, probabilities}, id);
  commit(made);
}

}  // namespace hvd::models::cudnn
