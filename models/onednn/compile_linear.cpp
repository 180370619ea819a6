// Compiles fully connected layers.
#include <utility>
#include <vector>

#include "models/onednn/layer_plans.h"

namespace hvd::models::onednn {
namespace {

/// Up to this many images, the weight gradient of a bf16 layer is computed in fp32. With so few images, the product
/// takes only as long as writing its result. For VGG's first layer (411 MB) the library's fp32 product is as fast as
/// memset, and its bf16 product takes about twice as long (oneDNN 2.6, fp32 / bf16: 34 / 74 ms with 8 images,
/// 42 / 77 ms with 32 images). Widening the inputs to fp32 is exact and takes negligible time.
constexpr std::int64_t kWideGradientImages = 32;
/// The gradient is computed in fp32 only if both sizes of the weights are multiples of this number. With other sizes,
/// TiledCopy (tiled_copy.h) cannot make the bf16 copies for the forward pass, and the library's reorder is slow.
constexpr std::int64_t kTiled = 16;

}  // namespace

TensorView Compiler::linear_input(TensorId id) {
  const TensorView from = value(id);
  const Shape& x = shape(id);
  if (type_ != Type::bf16 || x.rank() == 2 || from.desc != channels_last(x, type_)) return from;
  return {from.buffer, Md({x[0], x[1] * x[2] * x[3]}, type_, Tag::nc)};
}

std::vector<Compiler::LinearLayouts> Compiler::linear_layouts(const Md& src, const Dims& weights) const {
  std::vector<LinearLayouts> layouts{{.src = src, .weights = Md(weights, type_, Tag::any)}};
  const Dims dims = dims_of(src);
  const bool images = dims.size() == 4;
  for (const auto& [of_src, of_weights] : {std::pair{images ? Tag::nchw : Tag::nc, images ? Tag::oihw : Tag::oi},
                                           {images ? Tag::nhwc : Tag::nc, images ? Tag::ohwi : Tag::io}}) {
    layouts.push_back({.src = Md(dims, type_, of_src), .weights = Md(weights, type_, of_weights)});
  }
  return layouts;
}

void Compiler::linear(NodeId id) {
  const Node& linear = node(id);
  const Shape& w = shape(linear.inputs[1]);
  const Shape& y = shape(linear.outputs[0]);
  TensorView from = linear_input(linear.inputs[0]);
  const Md bias = row_major(shape(linear.inputs[2]));
  const NodeId relu = fused_relu_[static_cast<std::size_t>(id)];
  const TensorId result = relu == kNoNode ? linear.outputs[0] : node(relu).outputs[0];
  // The loss needs logits in fp32.
  const NodeId reader = only_forward_consumer(result);
  const bool logits = reader != kNoNode && node(reader).kind == OpKind::kSoftmaxCrossEntropy;
  const Md dst({y[0], y[1]}, logits ? Type::f32 : type_, Tag::nc);
  const Md diff_dst({y[0], y[1]}, type_, Tag::nc);
  Dims weight_dims{w[0], w.count() / w[0]};
  if (dims_of(from.desc).size() == 4) weight_dims = {w[0], w[3], w[1], w[2]};
  dnnl::primitive_attr attr = own_scratchpad();
  if (relu != kNoNode) append_relu(attr);

  const dnnl::engine& engine = program_.engine();
  const bool f32 = type_ == Type::f32;
  const Type arena = parameters_.gradient_type() == DataType::kBF16 ? Type::bf16 : Type::f32;
  // In fp32 all passes share one layout, because a copy of VGG's first layer would take 411 MB. In bf16 the passes
  // always need copies of the fp32 weights.
  const bool wide = !f32 && arena == Type::f32 && y[0] <= kWideGradientImages && dims_of(from.desc).size() == 2 &&
                    weight_dims[0] % kTiled == 0 && weight_dims[1] % kTiled == 0;
  const auto plan_with = [&](const LinearLayouts& as) {
    const LinearForward forward =
        linear_forward(engine, {.src = as.src, .weights = as.weights, .bias = &bias, .dst = dst}, attr);
    Md diff_weights(weight_dims, arena, Tag::any);
    if (f32) diff_weights = forward.weights_desc();
    if (wide) diff_weights = Md(weight_dims, Type::f32, Tag::ab);
    const LinearBackwardWeights backward_weights =
        linear_backward_weights(engine,
                                {.src = wide ? with_type(as.src, Type::f32) : as.src,
                                 .weights = diff_weights,
                                 .bias = &bias,
                                 .dst = wide ? with_type(diff_dst, Type::f32) : diff_dst},
                                own_scratchpad(), forward);
    const LinearBackwardData backward_data = linear_backward_data(
        engine, {.src = as.src, .weights = f32 ? forward.weights_desc() : as.weights, .bias = nullptr, .dst = diff_dst},
        own_scratchpad(), forward);
    return LinearPlan{forward, backward_data, backward_weights};
  };
  const LinearPlan plan = first_compiled(linear_layouts(from.desc, weight_dims), plan_with);
  const LinearForward& forward = plan.forward;
  const LinearBackwardWeights& backward_weights = plan.backward_weights;
  if (from.desc != forward.src_desc()) from = in_layout(linear.inputs[0], forward.src_desc());
  parameters_.set_layout(linear.inputs[1],
                         f32 ? forward.weights_desc() : with_type(backward_weights.diff_weights_desc(), Type::f32));
  parameters_.set_layout(linear.inputs[2], bias);

  BoundOperation& made = primitive(id, forward, dnnl::inner_product_forward(forward),
                                   {{DNNL_ARG_SRC, from},
                                    {DNNL_ARG_WEIGHTS, parameters_.derived(linear.inputs[1], forward.weights_desc())},
                                    {DNNL_ARG_BIAS, parameters_.stored(linear.inputs[2])},
                                    {DNNL_ARG_DST, output(result, dst, {}, id)}});
  if (relu != kNoNode) made.node += "+" + node(relu).name;
  linears_[id] = std::make_unique<LinearPlan>(plan);
}

void Compiler::linear_backward_weights_node(NodeId id) {
  const Node& backward = node(id);
  const LinearBackwardWeights& pd = linears_.at(backward.forward)->backward_weights;
  const Md bias = row_major(shape(backward.outputs[1]));
  const Type made_type = type_ == Type::f32 || parameters_.gradient_type() == DataType::kF32 ? Type::f32 : Type::bf16;
  TensorView from = linear_input(backward.inputs[0]);
  if (from.desc != pd.src_desc()) {
    const bool matrix = dims_of(pd.src_desc()).size() == 2;
    from = in_layout(backward.inputs[0], matrix ? channels_last(shape(backward.inputs[0]), Type::f32) : pd.src_desc());
    from.desc = pd.src_desc();
  }
  const TensorView diff = in_layout(backward.inputs[1], pd.diff_dst_desc());
  const std::vector<std::pair<TensorId, TensorView>> written{
      {backward.outputs[0], gradient_target(backward.outputs[0], pd.diff_weights_desc(), made_type)},
      {backward.outputs[1], gradient_target(backward.outputs[1], bias, Type::f32)}};
  primitive(id, pd, dnnl::inner_product_backward_weights(pd),
            {{DNNL_ARG_SRC, from},
             {DNNL_ARG_DIFF_DST, diff},
             {DNNL_ARG_DIFF_WEIGHTS, written[0].second},
             {DNNL_ARG_DIFF_BIAS, written[1].second}});
  finish_gradients(id, written);
}

void Compiler::linear_backward_data_node(NodeId id) {
  const Node& backward = node(id);
  const LinearBackwardData& pd = linears_.at(backward.forward)->backward_data;
  const TensorView diff = in_layout(backward.inputs[1], pd.diff_dst_desc());
  const TensorView weights = parameters_.derived(node(backward.forward).inputs[1], pd.weights_desc());
  const Shape& x = shape(backward.outputs[0]);
  const bool flat = x.rank() == 4 && dims_of(pd.diff_src_desc()).size() == 2;
  TensorView into = output(backward.outputs[0], flat ? channels_last(x, type_) : pd.diff_src_desc(), {}, id);
  into.desc = pd.diff_src_desc();
  primitive(id, pd, dnnl::inner_product_backward_data(pd),
            {{DNNL_ARG_DIFF_DST, diff}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, into}});
}

}  // namespace hvd::models::onednn
