// The backward half of ProgramBuilder: diffs of activations, and the operations that the launch of a diff also
// computes.
#include <algorithm>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/cudnn/lowering/program_builder.h"

namespace hvd::models::cudnn {

void ProgramBuilder::backward(NodeId id) {
  switch (node(id).kind) {
    case OpKind::kConvBackwardWeights: return conv_backward_weights(id);
    case OpKind::kConvBackwardData: return conv_backward_data(id);
    case OpKind::kFullyConnectedBackwardWeights: return linear_backward_weights(id);
    case OpKind::kFullyConnectedBackwardData: return linear_backward_data(id);
    case OpKind::kBatchNormBackward: return norm_backward(id);
    case OpKind::kReluBackward: return relu_backward(id);
    case OpKind::kDropoutBackward: return pool_backward(id, OpType::kDropoutBackward);
    case OpKind::kMaxPoolBackward: return pool_backward(id, OpType::kMaxPoolBackward);
    case OpKind::kAvgPoolBackward: return pool_backward(id, OpType::kAvgPoolBackward);
    case OpKind::kGlobalAvgPoolBackward: return pool_backward(id, OpType::kGlobalAvgPoolBackward);
    case OpKind::kConcatBackward: return concat_backward(id);
    case OpKind::kAccumulate: return accumulate(id);
    case OpKind::kSoftmaxCrossEntropyBackward: return loss_backward(id);
    default: HVD_ASSERT(!"not a backward node");
  }
}

// ---- Diffs and the operations that the launch of a diff also computes ----

void ProgramBuilder::bind_diff(TensorId id, ValueId value) {
  value_of_[static_cast<std::size_t>(id)] = value;
  for (const NodeId reader : readers(id)) {
    if (node(reader).kind != OpKind::kAccumulate) continue;
    parts_[reader].push_back(value);
    ++parts_made_[reader];
  }
}

ProgramBuilder::GradientUse ProgramBuilder::use(TensorId id) const {
  GradientUse use{.whole = id};
  if (options_.fusion.level == 0) return use;
  use.accumulate = only_reader(id, OpKind::kAccumulate);
  if (use.accumulate != kNoNode) {
    const auto parts = parts_.find(use.accumulate);
    const std::size_t waiting = parts == parts_.end() ? 0 : parts->second.size();
    const auto made = parts_made_.find(use.accumulate);
    const std::size_t before = made == parts_made_.end() ? 0 : made->second;
    if (waiting > 0) use.partner = parts->second.back();
    use.complete = waiting == 1 && before + 1 == node(use.accumulate).inputs.size();
    use.whole = use.complete ? node(use.accumulate).outputs[0] : kNoTensor;
  }
  if (use.whole == kNoTensor) return use;
  use.relu_backward = only_reader(use.whole, OpKind::kReluBackward);
  if (use.relu_backward == kNoNode) return use;
  use.delayed = delays_to(use.relu_backward) != kNoNode;
  if (options_.fusion.level < 2) return use;
  // If only the rectifier reads norm(x), the value that the rectifier's backward tests can be computed from x.
  const NodeId norm = norm_under(use.relu_backward);
  if (norm == kNoNode) return use;
  for (const NodeId reader : readers(node(use.relu_backward).outputs[0])) {
    if (node(reader).kind == OpKind::kBatchNormBackward && node(reader).forward == norm) use.norm_backward = reader;
  }
  return use;
}

NodeId ProgramBuilder::norm_under(NodeId relu_backward) const {
  const TensorId tested = node(node(relu_backward).forward).inputs[0];
  const NodeId producer = graph_.tensor(tested).producer;
  if (producer == kNoNode || node(producer).kind != OpKind::kBatchNorm) return kNoNode;
  return only_forward_reader(tested, OpKind::kRelu) != kNoNode ? producer : kNoNode;
}

// Returns the possible epilogues, the longest first. A launch can add its diff to an earlier part of a sum even if
// other parts of the sum are not made yet.
std::vector<ProgramBuilder::Epilogue> ProgramBuilder::epilogues(const GradientUse& use, Provider provider) const {
  std::vector<Epilogue> list;
  const bool add = use.partner != kNoValue;
  const bool whole = use.accumulate == kNoNode || use.complete;
  if (whole && use.norm_backward != kNoNode && provider == Provider::kCudnn) {
    list.push_back({.add = add, .relu = true, .sums = true});
  }
  if (whole && use.relu_backward != kNoNode && !use.delayed) list.push_back({.add = add, .relu = true});
  if (add) list.push_back({.add = true});
  list.emplace_back();
  return list;
}

ValueId ProgramBuilder::diff_target(Draft& draft, TensorId id, const Epilogue& epilogue) {
  if (epilogue.add || epilogue.relu) return inside_value(graph_.tensor(id).name + ":alone", shape(id));
  return output(draft, id);
}

ValueId ProgramBuilder::finish_diff(Draft& draft, TensorId id, ValueId diff, const GradientUse& use,
                                    const Epilogue& epilogue) {
  if (epilogue.add) {
    ValueId sum = kNoValue;
    if (epilogue.relu) {
      sum = inside_value(graph_.tensor(use.whole).name, shape(id));
      program_.values[static_cast<std::size_t>(sum)].tensor = use.whole;
    } else if (use.complete) {
      sum = output(draft, use.whole);
    } else {
      sum = extra_output(draft, graph_.tensor(id).name + ":partial", shape(id), storage_type());
    }
    operate(draft, OpType::kAdd, {diff, use.partner}, {sum}, use.accumulate);
    if (use.complete) draft.done.push_back(use.accumulate);
    diff = sum;
  }
  if (epilogue.relu) {
    const ValueId test = relu_test(draft, use.relu_backward, epilogue.sums);
    const ValueId masked = output(draft, node(use.relu_backward).outputs[0]);
    operate(draft, OpType::kReluBackward, {test, diff}, {masked}, use.relu_backward);
    draft.done.push_back(use.relu_backward);
    diff = masked;
  }
  return diff;
}

void ProgramBuilder::commit_diff(Draft& draft, ValueId result, const GradientUse& use, const Epilogue& epilogue) {
  if (epilogue.add) parts_.at(use.accumulate).pop_back();  // the launch has added this part
  commit(draft);
  if (epilogue.add && !use.complete) {
    parts_.at(use.accumulate).push_back(result);
    ++parts_made_[use.accumulate];
  }
}

ValueId ProgramBuilder::relu_test(Draft& draft, NodeId relu_backward, bool from_norm) {
  if (!from_norm) return value_of(node(relu_backward).inputs[0]);
  const NodeId norm = norm_under(relu_backward);
  HVD_ASSERT(norm != kNoNode);
  return applied_again(draft, norm, true);
}

// ---- Diffs of activations ----

void ProgramBuilder::conv_backward_data(NodeId id) {
  const Node& backward = node(id);
  const TensorId dx = backward.outputs[0];
  const ValueId diff = value_of(backward.inputs[1]);
  const GradientUse next = use(dx);
  for (const bool gaps : {true, false}) {
    if (!gaps && program_.value(diff).parent == kNoValue) continue;
    const ValueId dy = gaps ? diff : packed(diff, id);
    for (const Epilogue& epilogue : epilogues(next, Provider::kCudnn)) {
      Draft made = draft(Provider::kCudnn, epilogue.sums ? 2 : epilogue.add || epilogue.relu ? 1 : 0, id);
      const ValueId target = diff_target(made, dx, epilogue);
      operate_with_attr(made, OpType::kConvBackwardData, {value_of(backward.inputs[0]), dy}, {target}, id);
      const ValueId result = finish_diff(made, dx, target, next, epilogue);
      Casts casts;
      NormSums sums;
      if (epilogue.sums) sums = sums_into(made, next.norm_backward, result, casts);
      if (std::string why = refusal(made); !why.empty()) {
        record(made, std::move(why));
        take_back(made);
        continue;
      }
      commit_diff(made, result, next, epilogue);
      if (epilogue.sums) sums_[next.norm_backward] = sums;
      cast_gradients(casts);
      return;
    }
  }
  refuse_convolution(id, "data gradient");
}

void ProgramBuilder::linear_backward_data(NodeId id) {
  const Node& backward = node(id);
  Draft made = draft(Provider::kCublasLt, 0, id);
  operate(made, OpType::kLinearBackwardData, {value_of(backward.inputs[0]), value_of(backward.inputs[1])},
          {output(made, backward.outputs[0])}, id);
  commit(made);
}

void ProgramBuilder::relu_backward(NodeId id) {
  const NodeId norm_backward = delays_to(id);
  if (norm_backward == kNoNode) return own_relu_backward(id);
  delayed_relu_[norm_backward] = id;
}

// The backward of the batch norm before the rectifier also computes `relu_backward`, if nothing else reads the result
// of `relu_backward`. The norm's backward reads x anyway, and computes from x the value that the rectifier tests.
NodeId ProgramBuilder::delays_to(NodeId relu_backward) const {
  if (options_.fusion.level == 0) return kNoNode;
  const NodeId next = only_reader(node(relu_backward).outputs[0], OpKind::kBatchNormBackward);
  return next != kNoNode && norm_under(relu_backward) == node(next).forward ? next : kNoNode;
}

void ProgramBuilder::own_relu_backward(NodeId id) {
  const Node& backward = node(id);
  Draft made = draft(Provider::kOwn, 0, id);
  operate(made, OpType::kReluBackward, {value_of(backward.inputs[0]), value_of(backward.inputs[1])},
          {output(made, backward.outputs[0])}, id);
  commit(made);
}

// Makes the backward of a pool or a dropout: a launch of our kernel that reads one diff and writes one diff.
void ProgramBuilder::pool_backward(NodeId id, OpType type) {
  const Node& backward = node(id);
  const bool max = type == OpType::kMaxPoolBackward;
  const TensorId dx = backward.outputs[0];
  const ValueId dy = value_of(backward.inputs[max ? 2 : 0]);
  // If only this max pool reads a rectifier's output, dy reaches only elements equal to the pooled maximum. The
  // rectifier's backward can then test the sign of the maximum.
  NodeId undone = kNoNode;
  if (max && options_.fusion.level >= 1) {
    const NodeId producer = graph_.tensor(backward.inputs[0]).producer;
    const bool rectifier = producer != kNoNode && node(producer).kind == OpKind::kRelu;
    if (rectifier && only_forward_reader(backward.inputs[0], OpKind::kMaxPool) != kNoNode) {
      undone = only_reader(dx, OpKind::kReluBackward);
    }
  }
  if (undone != kNoNode) {
    Draft made = draft(Provider::kOwn, 1, id);
    const ValueId masked = inside_value(backward.name + ":masked", shape(backward.inputs[1]));
    operate(made, OpType::kReluBackward, {value_of(backward.inputs[1]), dy}, {masked}, undone);
    operate_with_attr(made, type, {where_.at(backward.forward), masked}, {output(made, node(undone).outputs[0])}, id);
    made.done.push_back(undone);
    return commit(made);
  }
  const GradientUse next = use(dx);
  // The kernel for dropout adds its inputs before it applies the mask. A sum after the mask therefore needs a launch of
  // its own.
  const std::vector<Epilogue> possible = epilogues(next, Provider::kOwn);
  const bool sum_last = type == OpType::kDropoutBackward && next.partner != kNoValue;
  const Epilogue epilogue = sum_last ? possible.back() : possible.front();
  Draft made = draft(Provider::kOwn, epilogue.add || epilogue.relu ? 1 : 0, id);
  const ValueId target = diff_target(made, dx, epilogue);
  std::vector<ValueId> inputs{dy};
  if (max) inputs.insert(inputs.begin(), where_.at(backward.forward));
  operate_with_attr(made, type, std::move(inputs), {target}, id);
  const ValueId result = finish_diff(made, dx, target, next, epilogue);
  commit_diff(made, result, next, epilogue);
}

void ProgramBuilder::concat_backward(NodeId id) {
  const Node& backward = node(id);
  const std::vector<TensorId>& inputs = node(backward.forward).inputs;
  const ValueId dy = value_of(backward.inputs[0]);
  Draft copies = draft(Provider::kOwn, 0, id);
  std::int64_t channel = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int64_t channels = shape(inputs[i])[3];
    if (backward.outputs[i] != kNoTensor) {
      const ValueId slice =
          add_value({.name = graph_.tensor(backward.outputs[i]).name + (options_.fusion.level == 0 ? ":slice" : ""),
                     .tensor = options_.fusion.level == 0 ? kNoTensor : backward.outputs[i],
                     .shape = shape(inputs[i]),
                     .type = storage_type(),
                     .parent = dy,
                     .channel = channel});
      if (options_.fusion.level == 0) {
        operate(copies, OpType::kCopy, {slice}, {output(copies, backward.outputs[i])}, id);
      } else {
        bind_diff(backward.outputs[i], slice);
      }
    }
    channel += channels;
  }
  if (options_.fusion.level >= 1) {
    program_.elided.push_back(id);
    return;
  }
  commit(copies);
}

// Adds those parts of the sum that no earlier launch has added.
void ProgramBuilder::accumulate(NodeId id) {
  const Node& accumulation = node(id);
  const TensorId sum = accumulation.outputs[0];
  const NodeId relu = options_.fusion.level >= 1 ? only_reader(sum, OpKind::kReluBackward) : kNoNode;
  Draft made = draft(Provider::kOwn, relu == kNoNode ? 0 : 1, id);
  std::vector<ValueId> parts = std::move(parts_[id]);
  parts_.erase(id);
  const ValueId value = relu == kNoNode ? output(made, sum) : inside_value(graph_.tensor(sum).name, shape(sum));
  program_.values[static_cast<std::size_t>(value)].tensor = sum;
  operate(made, OpType::kAdd, std::move(parts), {value}, id);
  if (relu != kNoNode) {
    operate(made, OpType::kReluBackward, {value_of(node(relu).inputs[0]), value}, {output(made, node(relu).outputs[0])},
            relu);
    made.done.push_back(relu);
  }
  commit(made);
}

void ProgramBuilder::loss_backward(NodeId id) {
  const Node& backward = node(id);
  Draft made = draft(Provider::kOwn, 0, id);
  operate_with_attr(made, OpType::kSoftmaxCrossEntropyBackward,
                    {value_of(backward.inputs[0]), value_of(backward.inputs[1])}, {output(made, backward.outputs[0])},
                    id);
  commit(made);
}

}  // namespace hvd::models::cudnn
