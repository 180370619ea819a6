// Compiles convolutions.
#include "models/onednn/kernels.h"
#include "models/onednn/layer_plans.h"

namespace hvd::models::onednn {
namespace {

/// Winograd F(4x4, 3x3) needs a quarter of a direct convolution's multiplications. It is faster if enough 4x4 tiles
/// share each transformed filter. Speed-up measured on AVX-512 (oneDNN 2.6, 64 to 512 channels): 1.5 at 128 tiles, 2 to
/// 2.5 at 1,000 and more tiles; at 32 tiles Winograd is slower. oneDNN's own choice (convolution_auto) never uses
/// Winograd in training.
constexpr std::int64_t kWinogradTiles = 96;
constexpr std::int64_t kWinogradChannels = 32;

bool wants_winograd(const Shape& x, const Shape& y, const Window& w) {
  const std::int64_t tiles = y[0] * ((y[1] + 3) / 4) * ((y[2] + 3) / 4);
  return w.kernel_h == 3 && w.kernel_w == 3 && w.stride_h == 1 && w.stride_w == 1 && x[3] >= kWinogradChannels &&
         y[3] >= kWinogradChannels && tiles >= kWinogradTiles;
}

/// Returns true if the weight gradient is one matrix product, dy^T {o, pixels} * x {pixels, i}. This holds for a 1x1
/// convolution over channels-last tensors. In bf16 on one AMX core, the library's matrix product reaches 370 to 690
/// GFLOP/s and its convolution 100 to 330 GFLOP/s (oneDNN 2.6). In oneDNN 3.2 the product is at least as fast as the
/// convolution.
bool is_product(const Shape& weights, const Window& w) {
  return weights[1] == 1 && weights[2] == 1 && w.pad_top == 0 && w.pad_left == 0 && w.pad_bottom == 0 &&
         w.pad_right == 0;
}

}  // namespace

std::vector<Compiler::ConvLayouts> Compiler::conv_layouts(const Shape& x, const Shape& y, const Shape& w) const {
  const Md weights({w[0], w[3], w[1], w[2]}, type_, Tag::any);
  return {{.src = preferred(x), .weights = weights, .dst = preferred(y)},
          {.src = any_layout(x, type_), .weights = weights, .dst = any_layout(y, type_)},
          {.src = channels_first(x, type_), .weights = weights, .dst = channels_first(y, type_)},
          {.src = channels_last(x, type_), .weights = weights, .dst = channels_last(y, type_)}};
}

void Compiler::conv(NodeId id) {
  const Node& conv = node(id);
  const Shape& x = shape(conv.inputs[0]);
  const Shape& y = shape(conv.outputs[0]);
  const Shape& w = shape(conv.inputs[1]);
  const bool images = conv.inputs[0] == graph_.images;
  const Geometry geometry = geometry_of(std::get<Window>(conv.attr));
  const NodeId relu = fused_relu_[static_cast<std::size_t>(id)];
  dnnl::primitive_attr attr = own_scratchpad();
  if (relu != kNoNode) append_relu(attr);

  std::optional<Md> bias;
  if (conv.inputs.size() > 2) bias = row_major(shape(conv.inputs[2]));
  const Md* const bias_desc = bias ? &*bias : nullptr;
  const dnnl::engine& engine = program_.engine();

  const auto plan_with = [&](dnnl::algorithm algorithm) {
    const std::vector<ConvLayouts> requests = conv_layouts(x, y, w);
    const ConvForward forward = first_compiled(requests, [&](const ConvLayouts& as) {
      return conv_forward(engine, algorithm, {.src = as.src, .weights = as.weights, .bias = bias_desc, .dst = as.dst},
                          geometry, attr);
    });
    std::optional<ConvBackwardData> data;
    if (!images) {
      data = first_compiled(requests, [&](const ConvLayouts& as) {
        return conv_backward_data(engine, algorithm,
                                  {.src = as.src, .weights = as.weights, .bias = nullptr, .dst = as.dst}, geometry,
                                  own_scratchpad(), forward);
      });
    }
    // In fp32 the gradient gets the layout of the weights in the forward pass, so that the update is one flat pass and
    // makes no copies. In bf16 the library chooses the gradient's layout. The stored weights always have the layout of
    // the gradient.
    const Type arena = parameters_.gradient_type() == DataType::kBF16 ? Type::bf16 : Type::f32;
    const Md any_gradient({w[0], w[3], w[1], w[2]}, type_ == Type::f32 ? Type::f32 : arena, Tag::any);
    std::vector<ConvLayouts> gradient_requests = requests;
    for (ConvLayouts& as : gradient_requests) as.weights = any_gradient;
    gradient_requests[0].src = forward.src_desc();
    if (type_ == Type::f32) gradient_requests[0].weights = forward.weights_desc();
    const ConvBackwardWeights weights = first_compiled(gradient_requests, [&](const ConvLayouts& as) {
      return conv_backward_weights(engine, algorithm,
                                   {.src = as.src, .weights = as.weights, .bias = bias_desc, .dst = as.dst}, geometry,
                                   own_scratchpad(), forward);
    });
    return std::make_unique<ConvPlan>(ConvPlan{forward, data, weights, bias, std::nullopt, {}});
  };
  std::unique_ptr<ConvPlan> plan;
  if (options_.winograd && type_ == Type::f32 && wants_winograd(x, y, std::get<Window>(conv.attr))) {
    try {
      plan = plan_with(dnnl::algorithm::convolution_winograd);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;  // no Winograd in this library or on this processor
    }
  }
  if (!plan) plan = plan_with(dnnl::algorithm::convolution_direct);

  const ConvForward& forward = plan->forward;
  if (type_ == Type::f32) {
    parameters_.set_layout(conv.inputs[1], plan->backward_weights.diff_weights_desc());
  } else if (is_product(w, std::get<Window>(conv.attr)) && !bias && !images) {
    const std::int64_t pixels = y[0] * y[1] * y[2];
    const Type arena = parameters_.gradient_type() == DataType::kBF16 ? Type::bf16 : Type::f32;
    plan->weights_as_product =
        matmul(engine, Md({w[0], pixels}, Type::bf16, Tag::ba), Md({pixels, w[3]}, Type::bf16, Tag::ab),
               Md({w[0], w[3]}, arena, Tag::ab), own_scratchpad());
    parameters_.set_layout(conv.inputs[1], Md({w[0], w[3], 1, 1}, Type::f32, Tag::abcd));
  } else {
    plan->bands = weight_gradient_bands(id, *plan);
    parameters_.set_layout(conv.inputs[1], plan->bands.empty()
                                               ? with_type(plan->backward_weights.diff_weights_desc(), Type::f32)
                                               : plan->bands[0].backward_weights.diff_weights_desc());
  }
  if (bias) parameters_.set_layout(conv.inputs[2], *bias);

  const TensorId result = relu == kNoNode ? conv.outputs[0] : node(relu).outputs[0];
  const TensorView from = in_layout(conv.inputs[0], forward.src_desc());
  std::vector<Argument> arguments{{DNNL_ARG_SRC, from},
                                  {DNNL_ARG_WEIGHTS, parameters_.derived(conv.inputs[1], forward.weights_desc())},
                                  {DNNL_ARG_DST, output(result, forward.dst_desc(), {}, id)}};
  if (bias) arguments.push_back({DNNL_ARG_BIAS, parameters_.stored(conv.inputs[2])});
  BoundOperation& made = primitive(id, forward, dnnl::convolution_forward(forward), std::move(arguments));
  if (relu != kNoNode) made.node += "+" + node(relu).name;
  convs_[id] = std::move(plan);
}

void Compiler::conv_backward_weights_node(NodeId id) {
  const Node& backward = node(id);
  const ConvPlan& plan = *convs_.at(backward.forward);
  if (plan.weights_as_product) return conv_backward_weights_as_product(id);
  if (!plan.bands.empty()) return conv_backward_weights_in_bands(id);
  const ConvBackwardWeights& pd = plan.backward_weights;
  const TensorView diff = in_layout(backward.inputs[1], pd.diff_dst_desc());
  const TensorView from = in_layout(backward.inputs[0], pd.src_desc());
  const Type made_type = type_ == Type::f32 || parameters_.gradient_type() == DataType::kF32 ? Type::f32 : Type::bf16;
  std::vector<std::pair<TensorId, TensorView>> written{
      {backward.outputs[0], gradient_target(backward.outputs[0], pd.diff_weights_desc(), made_type)}};
  std::vector<Argument> arguments{
      {DNNL_ARG_SRC, from}, {DNNL_ARG_DIFF_DST, diff}, {DNNL_ARG_DIFF_WEIGHTS, written[0].second}};
  if (plan.bias) {
    written.emplace_back(backward.outputs[1], gradient_target(backward.outputs[1], *plan.bias, Type::f32));
    arguments.push_back({DNNL_ARG_DIFF_BIAS, written[1].second});
  }
  primitive(id, pd, dnnl::convolution_backward_weights(pd), std::move(arguments));
  finish_gradients(id, written);
}

void Compiler::conv_backward_weights_as_product(NodeId id) {
  const Node& backward = node(id);
  const MatmulDesc& pd = *convs_.at(backward.forward)->weights_as_product;
  // Describe both tensors as matrices over the same bytes: the product takes only matrices.
  TensorView diff = in_layout(backward.inputs[1], channels_last(shape(backward.inputs[1]), Type::bf16));
  diff.desc = pd.src_desc();
  TensorView from = in_layout(backward.inputs[0], channels_last(shape(backward.inputs[0]), Type::bf16));
  const auto& window = std::get<Window>(backward.attr);
  if (window.stride_h != 1 || window.stride_w != 1) {
    // Only some pixels of x were read in forward. Pack these, so that they form a matrix.
    const Shape& x = shape(backward.inputs[0]);
    const Shape& y = shape(backward.inputs[1]);
    const TensorView packed = program_.new_value(backward.name + ":pixels", pd.weights_desc());
    const std::size_t pixel = static_cast<std::size_t>(x[3]) * sizeof(std::uint16_t);
    const std::size_t row = pixel * static_cast<std::size_t>(x[2]);
    const PixelGather gather{.rows = static_cast<std::size_t>(y[0] * y[1]),
                             .columns = static_cast<std::size_t>(y[2]),
                             .height = static_cast<std::size_t>(y[1]),
                             .pixel_bytes = pixel,
                             .image_stride = row * static_cast<std::size_t>(x[1]),
                             .row_stride = row * static_cast<std::size_t>(window.stride_h),
                             .column_stride = pixel * static_cast<std::size_t>(window.stride_w)};
    kernel(id, {from.buffer, packed.buffer}, [gather, source = from.buffer, target = packed.buffer](StepInput&) {
      gather_pixels(source->data, target->data, gather);
    });
    from = packed;
  }
  from.desc = pd.weights_desc();
  const TensorView into = parameters_.gradient(backward.outputs[0], pd.dst_desc());
  primitive(id, pd, dnnl::matmul(pd), {{DNNL_ARG_SRC, diff}, {DNNL_ARG_WEIGHTS, from}, {DNNL_ARG_DST, into}});
  finish_gradients(id, {{backward.outputs[0], into}});
}

void Compiler::conv_backward_data_node(NodeId id) {
  const Node& backward = node(id);
  const Node& forward = node(backward.forward);
  const ConvBackwardData& pd = *convs_.at(backward.forward)->backward_data;
  const TensorView diff = in_layout(backward.inputs[1], pd.diff_dst_desc());
  const TensorView weights = parameters_.derived(forward.inputs[1], pd.weights_desc());
  const TensorView into = output(backward.outputs[0], pd.diff_src_desc(), {}, id);
  primitive(id, pd, dnnl::convolution_backward_data(pd),
            {{DNNL_ARG_DIFF_DST, diff}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, into}});
}

}  // namespace hvd::models::onednn
