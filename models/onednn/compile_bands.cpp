// Weight gradients of convolutions over large images, in bf16, computed for one band of rows of one image at a time.
//
// The library's matrix-unit kernel first rearranges a whole image and its diff. For VGG's second layer, image and diff
// are 13 MB and have left the cache when the kernel multiplies them. Bands that fit into the second-level cache are
// faster. Time in ms on one core with batch 8 (oneDNN 2.6), whole image / bands of 28 rows:
//   3 to 64 channels of 224 x 224     25 / 16
//   64 to 64 channels of 224 x 224    70 / 50
//   64 to 128 channels of 112 x 112   28 / 21
//   128 to 128 channels of 112 x 112  52 / 37
// The partial gradients are summed in fp32 in a fixed order.
#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/base/assert.h"
#include "models/onednn/kernels.h"
#include "models/onednn/layer_plans.h"

namespace hvd::models::onednn {
namespace {

constexpr std::size_t kElement = sizeof(std::uint16_t);
/// Maximum bytes of a band and its diff. All processors with a matrix unit so far have 2 MiB of second-level cache.
constexpr std::size_t kBandBytes = std::size_t{7} << 18;
/// Bands are used only if an image and its diff are larger than this. In smaller layers with many channels, summing the
/// partial gradients takes as much time as the bands save, e.g. with 256 channels of 56 x 56 (3.1 MiB).
constexpr std::size_t kLargeBytes = std::size_t{1} << 22;
/// The library's kernel pads channels to a multiple of this number.
constexpr std::int64_t kChannels = 16;

std::size_t band_bytes(const Shape& x, const Shape& y, const Window& w, std::int64_t outputs) {
  const std::int64_t inputs = (outputs - 1) * w.stride_h + w.kernel_h;
  return static_cast<std::size_t>(inputs * x[2] * std::max(x[3], kChannels) + outputs * y[2] * y[3]) * kElement;
}

}  // namespace

std::vector<Compiler::Band> Compiler::weight_gradient_bands(NodeId id, const ConvPlan& plan) const {
  const Node& conv = node(id);
  const Shape& x = shape(conv.inputs[0]);
  const Shape& y = shape(conv.outputs[0]);
  const Shape& w = shape(conv.inputs[1]);
  const auto& window = std::get<Window>(conv.attr);
  const std::string_view implementation = plan.backward_weights.impl_info_str();
  const std::size_t whole = band_bytes(x, y, window, y[1]);
  if (whole <= kLargeBytes || implementation.find("amx") == std::string_view::npos) return {};

  const auto count = static_cast<std::int64_t>((whole + kBandBytes - 1) / kBandBytes);
  const std::int64_t rows = (y[1] + count - 1) / count;
  std::vector<Band> bands;
  for (std::int64_t first = 0; first < y[1]; first += rows) {
    const std::int64_t outputs = std::min(rows, y[1] - first);
    const std::int64_t begin = first * window.stride_h - window.pad_top;
    const std::int64_t end = begin + (outputs - 1) * window.stride_h + window.kernel_h;
    const std::int64_t above = std::max<std::int64_t>(0, -begin), below = std::max<std::int64_t>(0, end - x[1]);
    const std::int64_t inputs = end - below - (begin + above);
    if (inputs <= 0) return {};
    Geometry geometry = geometry_of(window);
    geometry.pad_low[0] = above;
    geometry.pad_high[0] = below;
    const Md weights_any({w[0], w[3], w[1], w[2]}, Type::bf16, Tag::any);
    Operands operands{.src = Md({1, x[3], inputs, x[2]}, Type::bf16, Tag::nhwc),
                      .weights = weights_any,
                      .bias = plan.bias ? &*plan.bias : nullptr,
                      .dst = Md({1, y[3], outputs, y[2]}, Type::bf16, Tag::nhwc)};
    const dnnl::engine& engine = program_.engine();
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const ConvForward forward = conv_forward(engine, algorithm, operands, geometry, own_scratchpad());
    operands.weights = bands.empty() ? Md({w[0], w[3], w[1], w[2]}, Type::f32, Tag::any)
                                     : bands[0].backward_weights.diff_weights_desc();
    const ConvBackwardWeights pd =
        conv_backward_weights(engine, algorithm, operands, geometry, own_scratchpad(), forward);
    if (pd.impl_info_str() != implementation) return {};
    bands.push_back({.backward_weights = pd, .first_input = begin + above, .first_output = first, .outputs = outputs});
  }
  return bands;
}

void Compiler::conv_backward_weights_in_bands(NodeId id) {
  const Node& backward = node(id);
  const ConvPlan& plan = *convs_.at(backward.forward);
  const Shape& x = shape(backward.inputs[0]);
  const Shape& y = shape(backward.inputs[1]);
  const TensorView from = in_layout(backward.inputs[0], channels_last(x, Type::bf16));
  const TensorView diff = in_layout(backward.inputs[1], channels_last(y, Type::bf16));
  const Md weights = plan.bands[0].backward_weights.diff_weights_desc();
  std::vector<std::pair<TensorId, TensorView>> written{
      {backward.outputs[0], gradient_target(backward.outputs[0], weights, Type::f32)}};
  std::vector<TensorView> partial{program_.new_value(backward.name + ":band", weights)};
  std::vector<int> kinds{DNNL_ARG_DIFF_WEIGHTS};
  if (plan.bias) {
    written.emplace_back(backward.outputs[1], gradient_target(backward.outputs[1], *plan.bias, Type::f32));
    partial.push_back(program_.new_value(backward.name + ":band_bias", *plan.bias));
    kinds.push_back(DNNL_ARG_DIFF_BIAS);
  }
  const auto row_bytes = [](const Shape& s) { return static_cast<std::size_t>(s[2] * s[3]) * kElement; };
  for (std::int64_t image = 0; image < x[0]; ++image) {
    for (const Band& band : plan.bands) {
      const ConvBackwardWeights& pd = band.backward_weights;
      const bool first = image == 0 && band.first_output == 0;
      const auto input_row = static_cast<std::size_t>(image * x[1] + band.first_input);
      const auto output_row = static_cast<std::size_t>(image * y[1] + band.first_output);
      std::vector<Argument> arguments{
          {DNNL_ARG_SRC, {from.buffer, pd.src_desc(), input_row * row_bytes(x)}},
          {DNNL_ARG_DIFF_DST, {diff.buffer, pd.diff_dst_desc(), output_row * row_bytes(y)}}};
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        arguments.push_back({kinds[i], first ? written[i].second : partial[i]});
      }
      BoundOperation& made = primitive(id, pd, dnnl::convolution_backward_weights(pd), std::move(arguments));
      const double share = static_cast<double>(band.outputs) / static_cast<double>(x[0] * y[1]);
      made.flops *= share;
      made.bytes *= share;
      if (first) continue;
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        Buffer *sum = written[i].second.buffer, *part = partial[i].buffer;
        const std::size_t count = partial[i].desc.get_size() / sizeof(float);
        BoundOperation& added = kernel(id, {sum, part}, [sum, part, count](StepInput&) {
          add(DataType::kF32, sum->data, part->data, sum->data, count);
        });
        added.flops = static_cast<double>(count);
        added.bytes = 3 * static_cast<double>(partial[i].desc.get_size());
      }
    }
  }
  finish_gradients(id, written);
}

}  // namespace hvd::models::onednn
