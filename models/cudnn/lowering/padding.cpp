// Images have three channels, but engines on tensor cores are fastest if the channels of a pixel fill a multiple of 16
// bytes. On an H200 (cuDNN 9.19, fp16, batch 256), the first convolution of ResNet-101 took 1.53 ms with three
// channels, and its weight gradient took 1.15 ms. Both took about four times as long as their memory traffic needs.
// ImageLayout::kPadded adds channels of zeroes to the images in memory (steps of ResNet-101 and VGG-16 are 1 % faster
// than with three channels). The convolutions that read padded images read a copy of their weight with as many channels
// as the images. The gradients of the added channels are not copied to the arena. The network, its parameters and its
// gradients stay the same.
//
// ImageLayout::kColumns ("im2col") first writes the windows of a convolution as rows of a matrix, which cuBLASLt
// multiplies. The rows have about ten times as many bytes as the images. Each row is written once and read twice.
#include <algorithm>

#include "engine/base/align.h"
#include "models/cudnn/kernels/kernels.h"
#include "models/cudnn/lowering/program_builder.h"

namespace hvd::models::cudnn {

// Images can be padded only if nothing but convolutions reads them.
bool ProgramBuilder::pads_images(TensorId id) const {
  const auto multiple = static_cast<std::size_t>(image_channels_multiple(options_.compute));
  const auto channels = static_cast<std::size_t>(shape(id)[3]);
  const std::vector<NodeId>& all = readers(id);
  return !multiplies_columns(only_forward_reader(id, OpKind::kConv)) && align_up(channels, multiple) != channels &&
         std::all_of(all.begin(), all.end(), [&](NodeId reader) {
           return node(reader).kind == OpKind::kConv || node(reader).kind == OpKind::kConvBackwardWeights;
         });
}

ProgramBuilder::Padded ProgramBuilder::add_padded(Value own) {
  const Shape& shape = own.shape;
  const std::int64_t channels = shape[shape.rank() - 1];
  const auto padded = static_cast<std::int64_t>(align_up(
      static_cast<std::size_t>(channels), static_cast<std::size_t>(image_channels_multiple(options_.compute))));
  Value whole{.name = own.name + ":padded",
              .storage = own.storage,
              .shape = shape.rank() == 4 ? Shape{shape[0], shape[1], shape[2], padded} : Shape{shape[0], padded},
              .type = own.type,
              .padding = padded - channels};
  own.parent = add_value(std::move(whole));
  return {.whole = own.parent, .own = add_value(std::move(own))};
}

void ProgramBuilder::pad_weight(NodeId conv) {
  const TensorId weight = node(conv).inputs[1];
  if (padded_.contains(node(conv).inputs[0])) padded_[weight] = padded_copy(conv, shape(weight));
}

// Every step makes this copy anew, because the update of the weights writes only to the parameter.
ValueId ProgramBuilder::padded_copy(NodeId conv, const Shape& as) {
  const TensorId weight = node(conv).inputs[1];
  const Padded padded = add_padded({.name = graph_.tensor(weight).name + ":copy",
                                    .storage = Storage::kPaddedWeight,
                                    .shape = as,
                                    .type = storage_type()});
  Draft copy = draft(Provider::kOwn, 0, conv);
  copy.group.writes.push_back(padded.own);
  operate(copy, OpType::kCopy, {value_of(weight)}, {padded.own}, conv);
  commit(copy);
  return padded.whole;
}

ValueId ProgramBuilder::padded_gradient(Draft& draft, TensorId id, const Shape& as, DataType made_in, Casts& casts) {
  const Padded made = add_padded({.name = graph_.tensor(id).name + ":made", .shape = as, .type = made_in});
  draft.group.writes.push_back(made.whole);
  casts.emplace_back(made.own, id);
  return made.whole;
}

// ---- Columns ----

bool ProgramBuilder::multiplies_columns(NodeId conv) const {
  if (conv == kNoNode || options_.fusion.level == 0 || options_.fusion.images != ImageLayout::kColumns) return false;
  const TensorId images = node(conv).inputs[0];
  if (graph_.tensor(images).role != TensorRole::kInput || only_forward_reader(images, OpKind::kConv) != conv)
    return false;
  const std::vector<NodeId>& then = readers(last_of_conv(conv));
  const bool sliced = std::any_of(then.begin(), then.end(), [&](NodeId reader) {
    return node(reader).kind == OpKind::kConcat;  // a matrix product cannot write slices
  });
  return !sliced && shape(images)[3] % image_channels_multiple(options_.compute) != 0 &&
         as_matrix(node(conv).inputs[1])[1] <= kernels::kMaxWindowElements;
}

// Returns the tensor that a fused launch of `conv` leaves: the result of the rectifier after `conv`, or of `conv` if
// there is no such rectifier.
TensorId ProgramBuilder::last_of_conv(NodeId conv) const {
  const TensorId y = node(conv).outputs[0];
  const NodeId relu = only_forward_reader(y, OpKind::kRelu);
  return relu == kNoNode ? y : node(relu).outputs[0];
}

// Returns the shape {output channels, elements of a window}. Every weight is stored in this layout.
Shape ProgramBuilder::as_matrix(TensorId weight) const {
  return {shape(weight)[0], shape(weight).count() / shape(weight)[0]};
}

void ProgramBuilder::columns_conv(NodeId id) {
  const Node& conv = node(id);
  const TensorId y = conv.outputs[0];
  const Shape weight = as_matrix(conv.inputs[1]);
  const ValueId w = padded_copy(id, weight);
  Draft gather = draft(Provider::kOwn, 1, id);
  const Shape matrix{shape(y).count() / shape(y)[3], program_.value(w).shape[1]};
  const ValueId columns = extra_output(gather, conv.name + ":columns", matrix, storage_type());
  program_.values[static_cast<std::size_t>(columns)].padding = matrix[1] - weight[1];
  operate_with_attr(gather, OpType::kColumns, {value_of(conv.inputs[0])}, {columns}, id);
  commit(gather);
  columns_[id] = columns;
  fused_product(id, columns, w);
}

// The product has a few thousand results, each a sum over millions of pixels. The sums are split by images, so that the
// product fills a GPU. The parts are added up in fp32 in a fixed order.
void ProgramBuilder::columns_backward_weights(NodeId id) {
  const Node& backward = node(id);
  const ValueId columns = columns_.at(backward.forward), dy = packed(value_of(backward.inputs[1]), id);
  const Shape weight = as_matrix(node(backward.forward).inputs[1]);
  Draft made = draft(Provider::kCublasLt, 1, id);
  const ValueId parts = extra_output(made, backward.name + ":parts",
                                     {graph_.batch_size, weight[0], program_.value(columns).shape[1]}, DataType::kF32);
  operate(made, OpType::kLinearBackwardWeights, {columns, dy}, {parts}, id);
  commit(made);
  Draft sum = draft(Provider::kOwn, 1, id);
  Casts casts;
  const ValueId whole = padded_gradient(sum, backward.outputs[0], weight, options_.gradient, casts);
  operate(sum, OpType::kPartialSum, {parts}, {whole}, id);
  commit(sum);
  cast_gradients(casts);
  if (backward.outputs.size() > 1) bias_gradient(id);
}

ValueId ProgramBuilder::operand(TensorId id) const {
  const auto padded = padded_.find(id);
  return padded == padded_.end() ? value_of(id) : padded->second;
}

}  // namespace hvd::models::cudnn
