// Compiles a batch normalisation, and fuses it with a ReLU that follows. The graph saves the inverse standard deviation
// for backward. The library saves the variance instead; only this file reads the variance.
#include "models/onednn/kernels.h"
#include "models/onednn/layer_plans.h"

namespace hvd::models::onednn {

void Compiler::norm(NodeId id) {
  const Node& norm = node(id);
  const auto& attr = std::get<BatchNormAttr>(norm.attr);
  const NodeId relu = fused_relu_[static_cast<std::size_t>(id)];
  const Shape& x_shape = shape(norm.inputs[0]);
  // The layout in which the tensor lies needs no reorder. Without AVX2, oneDNN 2.6 fuses a ReLU only in plain layouts.
  const NormForward pd = first_compiled(
      std::vector{value(norm.inputs[0]).desc, channels_first(x_shape, type_), channels_last(x_shape, type_)},
      [&](const Md& data) {
        return norm_forward(program_.engine(), data, static_cast<float>(attr.epsilon), relu != kNoNode,
                            own_scratchpad());
      });
  const TensorView x = in_layout(norm.inputs[0], pd.src_desc());
  const Md channels = row_major(shape(norm.inputs[1]));
  parameters_.set_layout(norm.inputs[1], channels);
  parameters_.set_layout(norm.inputs[2], channels);
  auto plan = std::make_unique<NormPlan>(NormPlan{.forward = pd,
                                                  .fuse_relu = relu != kNoNode,
                                                  .mean = program_.new_value(norm.name + ":mean", channels),
                                                  .variance = program_.new_value(norm.name + ":variance", channels),
                                                  .workspace = {}});
  const TensorId result = relu == kNoNode ? norm.outputs[0] : node(relu).outputs[0];
  std::vector<Argument> arguments{{DNNL_ARG_SRC, x},
                                  {DNNL_ARG_SCALE, parameters_.stored(norm.inputs[1])},
                                  {DNNL_ARG_SHIFT, parameters_.stored(norm.inputs[2])},
                                  {DNNL_ARG_MEAN, plan->mean},
                                  {DNNL_ARG_VARIANCE, plan->variance},
                                  {DNNL_ARG_DST, output(result, x.desc, {}, id)}};
  if (relu != kNoNode) {
    plan->workspace = program_.new_value(norm.name + ":workspace", pd.workspace_desc());
    arguments.push_back({DNNL_ARG_WORKSPACE, plan->workspace});
  }
  BoundOperation& made = primitive(id, pd, dnnl::batch_normalization_forward(pd), std::move(arguments));
  if (relu != kNoNode) made.node += "+" + node(relu).name;
  norms_[id] = std::move(plan);
}

void Compiler::running_statistics() {
  struct Update {
    const Buffer *batch_mean, *batch_variance;
    Buffer *mean, *variance;
    std::size_t channels;
    float momentum, unbias;
  };
  std::vector<Update> updates;
  std::vector<Buffer*> touches;
  for (const auto& [id, plan] : norms_) {
    const Node& norm = node(id);
    const Shape& x = shape(norm.inputs[0]);
    const auto samples = static_cast<double>(x.count()) / static_cast<double>(x[x.rank() - 1]);
    updates.push_back({.batch_mean = plan->mean.buffer,
                       .batch_variance = plan->variance.buffer,
                       .mean = parameters_.state(norm.inputs[3]).buffer,
                       .variance = parameters_.state(norm.inputs[4]).buffer,
                       .channels = plan->mean.buffer->bytes / sizeof(float),
                       .momentum = static_cast<float>(std::get<BatchNormAttr>(norm.attr).momentum),
                       .unbias = static_cast<float>(samples / (samples > 1 ? samples - 1 : 1))});
    touches.push_back(plan->mean.buffer);
    touches.push_back(plan->variance.buffer);
  }
  if (updates.empty()) return;
  // One operation updates the running statistics of all layers, because each layer takes only a few microseconds.
  BoundOperation operation{.node = "running statistics", .kind = "batch_norm_statistics", .implementation = "own"};
  operation.touches = std::move(touches);
  operation.kernel = [updates = std::move(updates)](StepInput&) {
    for (const Update& u : updates) {
      update_running({reinterpret_cast<float*>(u.mean->data), u.channels}, floats(u.batch_mean), u.momentum, 1.0F);
      update_running({reinterpret_cast<float*>(u.variance->data), u.channels}, floats(u.batch_variance), u.momentum,
                     u.unbias);
    }
  };
  program_.append(std::move(operation));
}

void Compiler::norm_backward_node(NodeId id) {
  const Node& backward = node(id);
  const Node& forward = node(backward.forward);
  const NormPlan& plan = *norms_.at(backward.forward);
  const TensorView x = in_layout(backward.inputs[0], plan.forward.src_desc());
  const NormBackward pd = norm_backward(program_.engine(), x.desc, x.desc,
                                        static_cast<float>(std::get<BatchNormAttr>(backward.attr).epsilon),
                                        plan.fuse_relu, own_scratchpad(), plan.forward);
  const TensorView diff = in_layout(backward.inputs[4], pd.diff_dst_desc());
  const Md channels = row_major(shape(backward.inputs[1]));
  const std::vector<std::pair<TensorId, TensorView>> written{
      {backward.outputs[1], gradient_target(backward.outputs[1], channels, Type::f32)},
      {backward.outputs[2], gradient_target(backward.outputs[2], channels, Type::f32)}};
  // The result may overwrite the incoming diff, because the library allows it for a batch normalisation.
  const TensorView into = output(backward.outputs[0], pd.diff_src_desc(), {diff}, id);
  std::vector<Argument> arguments{{DNNL_ARG_SRC, x},
                                  {DNNL_ARG_MEAN, plan.mean},
                                  {DNNL_ARG_VARIANCE, plan.variance},
                                  {DNNL_ARG_DIFF_DST, diff},
                                  {DNNL_ARG_SCALE, parameters_.stored(forward.inputs[1])},
                                  {DNNL_ARG_DIFF_SRC, into},
                                  {DNNL_ARG_DIFF_SCALE, written[0].second},
                                  {DNNL_ARG_DIFF_SHIFT, written[1].second}};
  if (norm_backward_reads_shift()) arguments.push_back({DNNL_ARG_SHIFT, parameters_.stored(forward.inputs[2])});
  if (plan.fuse_relu) arguments.push_back({DNNL_ARG_WORKSPACE, plan.workspace});
  primitive(id, pd, dnnl::batch_normalization_backward(pd), std::move(arguments));
  finish_gradients(id, written);
}

}  // namespace hvd::models::onednn
