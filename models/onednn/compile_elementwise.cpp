// Compiles ReLUs, sums, concatenation, dropout and the loss, which use our own kernels.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/onednn/kernels.h"
#include "models/onednn/layer_plans.h"
#include "models/random.h"

namespace hvd::models::onednn {
namespace {

/// How one tensor's channels lie in memory: as `rows` runs of `run_bytes` contiguous bytes each.
struct ChannelRuns {
  std::size_t rows = 0, run_bytes = 0;
};

/// One input of a concatenation, or one output of its backward.
struct ChannelCopy {
  Buffer* buffer = nullptr;
  std::size_t offset = 0;  ///< byte offset of this input or output in each run of the concatenated tensor
  RowCopy shape;
};

/// Returns the runs of a tensor. With channels last, each pixel is a run; else all channels of a sample form one run.
ChannelRuns channel_runs(const Shape& shape, Tag tag, std::size_t element_bytes) {
  const auto n = static_cast<std::size_t>(shape[0]);
  const auto pixels = static_cast<std::size_t>(shape[1] * shape[2]);
  const std::size_t per_pixel = static_cast<std::size_t>(shape[3]) * element_bytes;
  if (tag == Tag::nhwc) return {.rows = n * pixels, .run_bytes = per_pixel};
  return {.rows = n, .run_bytes = per_pixel * pixels};
}

}  // namespace

std::size_t Compiler::elements(const Md& desc) const { return desc.get_size() / size_of(options_.compute); }

void Compiler::relu_node(NodeId id) {
  const Node& rectifier = node(id);
  if (relu_fusion_[static_cast<std::size_t>(id)] != ReluFusion::kAdd) {
    const TensorView x = value(rectifier.inputs[0]);
    const TensorView y = output(rectifier.outputs[0], x.desc, {x}, id);
    kernel(id, {x.buffer, y.buffer},
           [type = options_.compute, from = x.buffer, to = y.buffer, count = elements(x.desc)](StepInput&) {
             relu(type, from->data, to->data, count);
           });
    return;
  }
  const Node& sum = node(graph_.tensor(rectifier.inputs[0]).producer);
  const TensorView a = value(sum.inputs[0]);
  const TensorView b = in_layout(sum.inputs[1], a.desc);
  const TensorView y = output(rectifier.outputs[0], a.desc, {a, b}, id);
  const std::size_t count = elements(a.desc);
  Buffer* mask = program_.new_buffer(rectifier.name + ":mask", mask_bytes(count));
  relu_masks_[id] = mask;
  BoundOperation& made = kernel(id, {a.buffer, b.buffer, y.buffer, mask},
                                [type = options_.compute, a = a.buffer, b = b.buffer, y = y.buffer, mask,
                                 count](StepInput&) { add_relu(type, a->data, b->data, y->data, mask->data, count); });
  made.node = fmt::format("{}+{}", sum.name, made.node);
}

void Compiler::add_node(NodeId id) {
  const Node& sum = node(id);
  const TensorView a = value(sum.inputs[0]);
  const TensorView b = in_layout(sum.inputs[1], a.desc);
  const TensorView y = output(sum.outputs[0], a.desc, {a, b}, id);
  kernel(id, {a.buffer, b.buffer, y.buffer},
         [type = options_.compute, a = a.buffer, b = b.buffer, y = y.buffer, count = elements(a.desc)](StepInput&) {
           add(type, a->data, b->data, y->data, count);
         });
}

void Compiler::sum_into(NodeId id, TensorId output_id, const std::vector<TensorId>& parts, const SumMask& mask) {
  if (parts.size() > kMaxSummands) {
    throw Error(Errc::kUnsupported, fmt::format("{}: a tensor used more than {} times", node(id).name, kMaxSummands));
  }
  std::vector<TensorView> from;
  const Md desc = mask.bits != nullptr     ? mask.layout
                  : mask.sign != kNoTensor ? value(mask.sign).desc
                                           : value(parts[0]).desc;
  from.reserve(parts.size());
  for (const TensorId part : parts) from.push_back(in_layout(part, desc));
  const TensorView into = output(output_id, desc, from, id);
  std::array<Buffer*, kMaxSummands> sources{};
  std::vector<Buffer*> touches{into.buffer};
  for (std::size_t i = 0; i < from.size(); ++i) touches.push_back(sources.at(i) = from[i].buffer);
  Buffer* sign = mask.sign == kNoTensor ? nullptr : value(mask.sign).buffer;
  if (mask.bits != nullptr) touches.push_back(mask.bits);
  if (sign != nullptr) touches.push_back(sign);
  kernel(id, std::move(touches),
         [type = options_.compute, sources, n = from.size(), bits = mask.bits, sign, to = into.buffer,
          count = elements(desc)](StepInput&) {
           std::array<const void*, kMaxSummands> data{};
           for (std::size_t i = 0; i < n; ++i) data.at(i) = sources.at(i)->data;
           masked_sum(
               type, {data.data(), n},
               {.mask = bits == nullptr ? nullptr : bits->data, .positive = sign == nullptr ? nullptr : sign->data},
               to->data, count);
         });
}

void Compiler::relu_backward(NodeId id) {
  const Node& backward = node(id);
  const auto relu_id = static_cast<std::size_t>(backward.forward);
  const ReluFusion fusion = relu_fusion_[relu_id];
  if (fusion == ReluFusion::kNorm || mask_at_pool_[relu_id]) {
    // Nothing to compute: the backward of a pool has masked the diff, or the backward of a batch norm will mask it.
    set_value(backward.outputs[0], value(backward.inputs[1]));
    if (mask_at_pool_[relu_id]) {
      unfinished_[static_cast<std::size_t>(backward.inputs[1])] = true;
    } else {
      unfinished_[static_cast<std::size_t>(backward.outputs[0])] = true;
    }
    return;
  }
  const NodeId producer = graph_.tensor(backward.inputs[1]).producer;
  std::vector<TensorId> parts{backward.inputs[1]};
  std::string prefix;
  if (skipped_[static_cast<std::size_t>(producer)]) {
    parts = node(producer).inputs;
    prefix = node(producer).name + "+";
  }
  SumMask mask;
  if (fusion == ReluFusion::kAdd) {
    mask.bits = relu_masks_.at(backward.forward);
    // The bits of the mask are in the order of the elements of the forward sum.
    mask.layout = value(node(backward.forward).outputs[0]).desc;
  } else if (parts.size() == 1) {
    const TensorView y = value(backward.inputs[0]);
    const TensorView diff = in_layout(parts[0], y.desc);
    masked_by_sign(id, y, diff, output(backward.outputs[0], y.desc, {diff}, id));
    return;
  } else {
    mask.sign = backward.inputs[0];
  }
  sum_into(id, backward.outputs[0], parts, mask);
  BoundOperation& made = program_.last();
  made.node = prefix + made.node;
}

void Compiler::masked_by_sign(NodeId id, const TensorView& y, const TensorView& diff, const TensorView& into) {
  const ReluBackward pd = onednn::relu_backward(program_.engine(), y.desc, own_scratchpad());
  primitive(id, pd, dnnl::eltwise_backward(pd),
            {{DNNL_ARG_DST, y}, {DNNL_ARG_DIFF_DST, diff}, {DNNL_ARG_DIFF_SRC, into}});
}

void Compiler::accumulate(NodeId id) { sum_into(id, node(id).outputs[0], node(id).inputs, {}); }

void Compiler::concat(NodeId id) {
  const Node& concat = node(id);
  const Shape& y = shape(concat.outputs[0]);
  Tag tag = activation_tag(value(concat.inputs[0]).desc, type_);
  const std::int64_t block = tag == Tag::nChw16c ? 16 : tag == Tag::nChw8c ? 8 : 1;
  for (const TensorId input : concat.inputs) {
    if (shape(input)[3] % block != 0) tag = Tag::undef;
  }
  if (tag == Tag::undef) tag = Tag::nhwc;
  const auto layout = [&](const Shape& s) { return Md({s[0], s[3], s[1], s[2]}, type_, tag); };
  const TensorView into = output(concat.outputs[0], layout(y), {}, id);
  const std::size_t stride = channel_runs(y, tag, size_of(options_.compute)).run_bytes;
  std::vector<ChannelCopy> copies;
  std::vector<Buffer*> touches{into.buffer};
  std::size_t offset = 0;
  for (const TensorId input : concat.inputs) {
    const TensorView from = in_layout(input, layout(shape(input)));
    const ChannelRuns runs = channel_runs(shape(input), tag, size_of(options_.compute));
    copies.push_back(
        {from.buffer,
         offset,
         {.rows = runs.rows, .row_bytes = runs.run_bytes, .from_stride = runs.run_bytes, .to_stride = stride}});
    touches.push_back(from.buffer);
    offset += runs.run_bytes;
  }
  kernel(id, std::move(touches), [copies, to = into.buffer](StepInput&) {
    for (const ChannelCopy& copy : copies) copy_rows(copy.buffer->data, to->data + copy.offset, copy.shape);
  });
}

void Compiler::concat_backward(NodeId id) {
  const Node& backward = node(id);
  const Shape& y = shape(backward.inputs[0]);
  const Md forward_layout = value(node(backward.forward).outputs[0]).desc;
  const Tag tag = activation_tag(forward_layout, type_);
  const TensorView from = in_layout(backward.inputs[0], forward_layout);
  const std::size_t stride = channel_runs(y, tag, size_of(options_.compute)).run_bytes;
  std::vector<ChannelCopy> copies;
  std::vector<Buffer*> touches{from.buffer};
  std::size_t offset = 0;
  for (std::size_t i = 0; i < backward.outputs.size(); ++i) {
    const TensorId diff = backward.outputs[i];
    const Shape& s = shape(node(backward.forward).inputs[i]);
    const ChannelRuns runs = channel_runs(s, tag, size_of(options_.compute));
    if (diff != kNoTensor) {
      const TensorView into = output(diff, Md({s[0], s[3], s[1], s[2]}, type_, tag), {}, id);
      copies.push_back(
          {into.buffer,
           offset,
           {.rows = runs.rows, .row_bytes = runs.run_bytes, .from_stride = stride, .to_stride = runs.run_bytes}});
      touches.push_back(into.buffer);
    }
    offset += runs.run_bytes;
  }
  kernel(id, std::move(touches), [copies, from = from.buffer](StepInput&) {
    for (const ChannelCopy& copy : copies) copy_rows(from->data + copy.offset, copy.buffer->data, copy.shape);
  });
}

void Compiler::dropout_node(NodeId id) {
  const Node& layer = node(id);
  const auto attr = std::get<DropoutAttr>(layer.attr);
  const Shape& s = shape(layer.inputs[0]);
  // The dropout mask is defined in row-major order, so the tensor must be channels-last.
  const TensorView x = in_layout(layer.inputs[0], channels_last(s, type_));
  const TensorView y = output(layer.outputs[0], x.desc, {x}, id);
  const auto count = static_cast<std::size_t>(s.count());
  Buffer* keep = program_.new_buffer(layer.name + ":mask", count);
  drop_masks_[id] = keep;
  const auto features = static_cast<std::uint64_t>(s.count() / s[0]);
  kernel(
      id, {x.buffer, y.buffer, keep},
      [attr, seed = options_.seed, features, keep, count, type = options_.compute, from = x.buffer,
       to = y.buffer](StepInput& input) {
        const std::span<std::uint8_t> mask(reinterpret_cast<std::uint8_t*>(keep->data), count);
        dropout_mask(
            attr,
            {.seed = seed, .step = input.batch->step, .first_sample = input.batch->first_sample, .features = features},
            mask);
        dropout(type, from->data, mask, static_cast<float>(dropout_scale(attr)), to->data);
      });
}

void Compiler::dropout_backward(NodeId id) {
  const Node& backward = node(id);
  const auto scale = static_cast<float>(dropout_scale(std::get<DropoutAttr>(backward.attr)));
  const Shape& s = shape(backward.inputs[0]);
  const TensorView diff = in_layout(backward.inputs[0], channels_last(s, type_));
  const TensorView into = output(backward.outputs[0], diff.desc, {diff}, id);
  Buffer* keep = drop_masks_.at(backward.forward);
  kernel(id, {diff.buffer, into.buffer, keep},
         [type = options_.compute, from = diff.buffer, to = into.buffer, keep, scale,
          count = static_cast<std::size_t>(s.count())](StepInput&) {
           dropout(type, from->data, {reinterpret_cast<const std::uint8_t*>(keep->data), count}, scale, to->data);
         });
}

void Compiler::loss(NodeId id) {
  const Node& loss = node(id);
  const Shape& s = shape(loss.inputs[0]);
  const Md plain({s[0], s[1]}, Type::f32, Tag::nc);
  const TensorView logits = in_layout(loss.inputs[0], plain);
  const TensorView probabilities = output(loss.outputs[1], plain, {logits}, id);
  kernel(id, {logits.buffer, probabilities.buffer},
         [weight = std::get<LossAttr>(loss.attr).weight, classes = static_cast<std::size_t>(s[1]), from = logits.buffer,
          to = probabilities.buffer](StepInput& input) {
           input.loss += weight * softmax_cross_entropy(reinterpret_cast<const float*>(from->data), input.batch->labels,
                                                        classes, reinterpret_cast<float*>(to->data));
           input.sink->forward_ended();
         });
}

void Compiler::loss_backward(NodeId id) {
  const Node& backward = node(id);
  const Shape& s = shape(backward.outputs[0]);
  const TensorView probabilities = value(backward.inputs[0]);
  const TensorView into = output(backward.outputs[0], Md({s[0], s[1]}, type_, Tag::nc), {}, id);
  const auto scale = static_cast<float>(std::get<LossAttr>(backward.attr).weight / static_cast<double>(s[0]));
  kernel(id, {probabilities.buffer, into.buffer},
         [type = options_.compute, from = probabilities.buffer, to = into.buffer, scale,
          classes = static_cast<std::size_t>(s[1])](StepInput& input) {
           softmax_cross_entropy_backward(type, reinterpret_cast<const float*>(from->data), input.batch->labels,
                                          classes, scale, to->data);
         });
}

}  // namespace hvd::models::onednn
