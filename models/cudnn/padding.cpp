// Images of three channels: engines on tensor cores are at their best with a multiple of 16 bytes of them. On an H200
// (cuDNN 9.19, fp16, batch 256) the first convolution of ResNet-101 took 1.53 ms and its weight gradient 1.15 ms, some
// four times their traffic. So images may have channels of zeroes added in memory (AnalysisOptions::pad_images; whether
// it pays has not been timed), the convolutions that read them a copy of their weight with as many, and the gradients
// of those are left behind. What the network computes, and what its parameters and gradients are, stays the same.
#include <algorithm>

#include "engine/base/align.h"
#include "models/cudnn/analyser.h"

namespace hvd::models::cudnn {

// Only convolutions read the channels that were added.
bool Analyser::pads_images(TensorId id) const {
  const auto multiple = static_cast<std::size_t>(image_channels_multiple(options_.compute));
  const auto channels = static_cast<std::size_t>(shape(id)[3]);
  const std::vector<NodeId>& all = readers(id);
  return options_.pad_images && align_up(channels, multiple) != channels &&
         std::all_of(all.begin(), all.end(), [&](NodeId reader) {
           return node(reader).kind == OpKind::kConv || node(reader).kind == OpKind::kConvBackwardWeights;
         });
}

Analyser::Padded Analyser::add_padded(Value own) {
  const Shape& of = own.shape;
  const std::size_t channels =
      align_up(static_cast<std::size_t>(of[3]), static_cast<std::size_t>(image_channels_multiple(options_.compute)));
  Value whole{.name = own.name + ":padded",
              .home = own.home,
              .shape = {of[0], of[1], of[2], static_cast<std::int64_t>(channels)},
              .type = own.type,
              .padding = static_cast<std::int64_t>(channels) - of[3]};
  own.parent = add_value(std::move(whole));
  return {.whole = own.parent, .own = add_value(std::move(own))};
}

// At every step, for the update writes the parameter alone.
void Analyser::pad_weight(NodeId conv) {
  const TensorId weight = node(conv).inputs[1];
  if (!padded_.contains(node(conv).inputs[0])) return;
  const Padded padded = add_padded({.name = graph_.tensor(weight).name + ":copy",
                                    .home = Home::kPaddedWeight,
                                    .shape = shape(weight),
                                    .type = storage_type()});
  Draft copy = draft(Engine::kOwn, 0, conv);
  copy.group.writes.push_back(padded.own);
  operate(copy, OpType::kCopy, {value_of(weight)}, {padded.own}, conv);
  commit(copy);
  padded_[weight] = padded.whole;
}

ValueId Analyser::padded_gradient(Draft& draft, TensorId id, DataType made_in, Casts& casts) {
  const Padded made = add_padded({.name = graph_.tensor(id).name + ":made", .shape = shape(id), .type = made_in});
  draft.group.writes.push_back(made.whole);
  casts.emplace_back(made.own, id);
  return made.whole;
}

ValueId Analyser::operand(TensorId id) const {
  const auto padded = padded_.find(id);
  return padded == padded_.end() ? value_of(id) : padded->second;
}

}  // namespace hvd::models::cudnn
