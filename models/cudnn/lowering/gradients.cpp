// The backward half of ProgramBuilder: gradients of parameters, and the backward passes of batch norms.
#include <algorithm>

#include "engine/base/assert.h"
#include "models/cudnn/lowering/program_builder.h"

namespace hvd::models::cudnn {

// Launches of cuDNN and cuBLASLt write gradients of vectors in fp32, and gradients of weights in the type of the
// launch's inputs. If the gradient arena has another type, a copy follows.
ValueId ProgramBuilder::gradient_output(Draft& draft, TensorId id, DataType made_in, Casts& casts) {
  if (options_.gradient == made_in) return output(draft, id);
  const ValueId value = extra_output(draft, graph_.tensor(id).name + ":made", shape(id), made_in);
  casts.emplace_back(value, id);
  return value;
}

// Starting a launch takes longer than copying a vector of a few hundred elements, so several vectors wait for one
// launch. The wait delays their gradients by much less time than a bucket takes to fill.
void ProgramBuilder::cast_gradients(const Casts& casts) {
  constexpr std::size_t kCastsPerLaunch = 16;
  casts_.insert(casts_.end(), casts.begin(), casts.end());
  if (casts_.size() >= kCastsPerLaunch) launch_casts();
}

void ProgramBuilder::launch_casts() {
  if (casts_.empty()) return;
  Draft made = draft(Provider::kOwn, 0, kNoNode);
  for (const auto& [value, tensor] : casts_) {
    operate(made, OpType::kCopy, {value}, {output(made, tensor)}, graph_.tensor(tensor).producer);
  }
  casts_.clear();
  commit(made);
}

void ProgramBuilder::conv_backward_weights(NodeId id) {
  const Node& backward = node(id);
  if (columns_.contains(backward.forward)) return columns_backward_weights(id);
  const ValueId diff = value_of(backward.inputs[1]);
  // Tries the type of the inputs first. With 16-bit inputs and an fp32 arena, this type costs a rounding and a copy,
  // but the only engine of cuDNN 9.14 that sums directly into fp32 is up to 20 times as slow (H200). Tries the arena's
  // type next. If both types are refused, tries both types again with a copy of the diff that has no gaps.
  std::vector<DataType> types{storage_type()};
  if (storage_type() != options_.gradient) types.push_back(options_.gradient);
  const bool padded = padded_.contains(node(backward.forward).inputs[0]);
  for (const bool gaps : {true, false}) {
    if (!gaps && program_.value(diff).parent == kNoValue) continue;
    const ValueId dy = gaps ? diff : packed(diff, id);
    for (const DataType type : types) {
      Draft made = draft(Provider::kCudnn, 0, id);
      Casts casts;
      const ValueId dw = padded ? padded_gradient(made, backward.outputs[0], shape(backward.outputs[0]), type, casts)
                                : gradient_output(made, backward.outputs[0], type, casts);
      operate(made, OpType::kConvBackwardWeights, {operand(node(backward.forward).inputs[0]), dy}, {dw}, id);
      made.group.operations.back().attr = node(backward.forward).attr;
      if (!offer(made)) continue;
      cast_gradients(casts);
      if (backward.outputs.size() > 1) bias_gradient(id);
      return;
    }
  }
  refuse_convolution(id, "weight gradient");
}

void ProgramBuilder::bias_gradient(NodeId id) {
  const Node& backward = node(id);
  Draft made = draft(Provider::kOwn, 0, id);
  operate(made, OpType::kBiasGradient, {value_of(backward.inputs[1])}, {output(made, backward.outputs[1])}, id);
  commit(made);
}

void ProgramBuilder::linear_backward_weights(NodeId id) {
  const Node& backward = node(id);
  const ValueId x = packed(value_of(backward.inputs[0]), id);
  Draft made = draft(Provider::kCublasLt, options_.fusion.level >= 1 ? 1 : 0, id);
  const ValueId dy = value_of(backward.inputs[1]);
  // cuBLASLt writes products in fp32 or in the type of their inputs. Source: the table of types in its documentation.
  const DataType type = options_.gradient == DataType::kF32 ? DataType::kF32 : storage_type();
  Casts casts;
  operate(made, OpType::kLinearBackwardWeights, {x, dy}, {gradient_output(made, backward.outputs[0], type, casts)}, id);
  // The product's epilogue sums dy, in the type of the product's output.
  if (options_.fusion.level >= 1) {
    operate(made, OpType::kBiasGradient, {dy}, {gradient_output(made, backward.outputs[1], type, casts)}, id);
  }
  commit(made);
  cast_gradients(casts);
  if (options_.fusion.level == 0) bias_gradient(id);
}

// ---- Batch norms ----

void ProgramBuilder::norm_backward(NodeId id) {
  if (sums_.contains(id)) return apply_norm_backward(id);
  const auto delayed = delayed_relu_.find(id);
  own_norm_backward(id, delayed == delayed_relu_.end() ? kNoNode : delayed->second);
}

// Adds to `draft` the sums over dy that a batch norm's backward needs. The sums give the gradients of the norm's
// parameters and three vectors, from which the second pass computes dx.
NormSums ProgramBuilder::sums_into(Draft& draft, NodeId norm_backward, ValueId dy, Casts& casts) {
  const Node& backward = node(norm_backward);
  const NormVectors& vectors = norms_.at(backward.forward);
  const Shape channels = shape(backward.outputs[1]);
  const ValueId dgamma = gradient_output(draft, backward.outputs[1], DataType::kF32, casts);
  const ValueId dbeta = gradient_output(draft, backward.outputs[2], DataType::kF32, casts);
  const NormSums sums{.norm_backward = norm_backward,
                      .a = extra_output(draft, backward.name + ":a", channels, DataType::kF32),
                      .b = extra_output(draft, backward.name + ":b", channels, DataType::kF32),
                      .c = extra_output(draft, backward.name + ":c", channels, DataType::kF32),
                      .dy = dy,
                      .level = draft.group.level};
  operate(draft, OpType::kNormBackwardWeights,
          {value_of(backward.inputs[0]), dy, value_of(backward.inputs[1]), vectors.mean, vectors.inv_std},
          {dgamma, dbeta, sums.a, sums.b, sums.c}, norm_backward);
  return sums;
}

// Our kernels make two passes, each over dy and x. Each pass also computes the backward of the rectifier after the
// norm, if any. The two passes read or write five tensors. A separate launch for the rectifier would read two more
// tensors and write one more.
void ProgramBuilder::own_norm_backward(NodeId id, NodeId relu) {
  const Node& backward = node(id);
  Draft made = draft(Provider::kOwn, relu != kNoNode ? 1 : 0, id);
  ValueId dy = relu == kNoNode ? value_of(backward.inputs[4]) : value_of(node(relu).inputs[1]);
  const ValueId before = dy;
  if (relu != kNoNode) {
    const ValueId test = applied_again(made, backward.forward, true);
    dy = inside_value(graph_.tensor(backward.inputs[4]).name, shape(backward.inputs[4]));
    operate(made, OpType::kReluBackward, {test, before}, {dy}, relu);
  }
  // Our kernel writes gradients in the arena's type, so the group writes to the arena's values and needs no copies.
  Casts casts;
  NormSums sums = sums_into(made, id, dy, casts);
  for (std::size_t i = 0; i < casts.size(); ++i) {
    const ValueId arena = value_of(casts[i].second);
    std::replace(made.group.writes.begin(), made.group.writes.end(), casts[i].first, arena);
    made.group.operations.back().outputs[i] = arena;
  }
  sums.dy = before;
  sums.relu = relu;
  commit(made);
  sums_[id] = sums;
  apply_norm_backward(id);
}

void ProgramBuilder::apply_norm_backward(NodeId id) {
  const Node& backward = node(id);
  const NormSums& sums = sums_.at(id);
  const bool fused = sums.relu != kNoNode;
  Draft made = draft(Provider::kOwn, sums.level, id);
  ValueId dy = sums.dy;
  if (fused) {
    const ValueId test = applied_again(made, backward.forward, true);
    dy = inside_value(graph_.tensor(backward.inputs[4]).name + ":again", shape(backward.inputs[4]));
    operate(made, OpType::kReluBackward, {test, sums.dy}, {dy}, sums.relu, true);
  }
  operate(made, OpType::kNormBackwardApply, {value_of(backward.inputs[0]), dy, sums.a, sums.b, sums.c},
          {output(made, backward.outputs[0])}, id);
  commit(made);
}

}  // namespace hvd::models::cudnn
