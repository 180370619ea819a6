// Compiles max, average and global average pools.
#include "engine/base/error.h"
#include "models/onednn/kernels.h"
#include "models/onednn/layer_plans.h"

namespace hvd::models::onednn {
namespace {

// Returns true for a pool that our own kernel computes. In bf16 the library's average pool reaches only 4 GB/s per
// core, but our kernel is as fast as the caches. Such pools take 6 % of a step of Inception V3.
bool is_mean_3x3(const Node& pool, Type type, Tag layout) {
  if (pool.kind != OpKind::kAvgPool || type != Type::bf16 || layout != Tag::nhwc) return false;
  const auto& w = std::get<Window>(pool.attr);
  return w.kernel_h == 3 && w.kernel_w == 3 && w.stride_h == 1 && w.stride_w == 1 && w.pad_top == 1 &&
         w.pad_bottom == 1 && w.pad_left == 1 && w.pad_right == 1;
}

Pixels pixels(const Shape& shape) {
  const auto size = [&shape](int axis) { return static_cast<std::size_t>(shape[axis]); };
  return {.images = size(0), .height = size(1), .width = size(2), .channels = size(3)};
}

}  // namespace

void Compiler::pool(NodeId id) {
  const Node& pool = node(id);
  const Shape& x = shape(pool.inputs[0]);
  const Shape& y = shape(pool.outputs[0]);
  const bool global = pool.kind == OpKind::kGlobalAvgPool;
  const auto algorithm =
      pool.kind == OpKind::kMaxPool ? dnnl::algorithm::pooling_max : dnnl::algorithm::pooling_avg_exclude_padding;
  const Geometry geometry =
      global ? Geometry{.kernel = {x[1], x[2]}, .strides = {1, 1}, .pad_low = {0, 0}, .pad_high = {0, 0}}
             : geometry_of(std::get<Window>(pool.attr));
  const TensorView from = value(pool.inputs[0]);
  const Dims result_dims = global ? Dims{y[0], y[1], 1, 1} : Dims{y[0], y[3], y[1], y[2]};
  // The output gets the layout of the input, because the library is fast in this case.
  const Tag tag = activation_tag(from.desc, type_);
  const Md dst(result_dims, type_, tag == Tag::undef ? Tag::any : tag);
  const PoolForward pd = pool_forward(program_.engine(), algorithm, from.desc, dst, geometry, own_scratchpad());
  const auto& plan = pools_[id] = std::make_unique<PoolPlan>(
      PoolPlan{.forward = pd, .algorithm = algorithm, .geometry = geometry, .workspace = {}});
  TensorView result;
  if (global) {
    // A tensor {n, c, 1, 1} has the same bytes as {n, c}, unless the library pads the channels.
    const Md flat({y[0], y[1]}, type_, Tag::nc);
    if (pd.dst_desc().get_size() != flat.get_size()) {
      throw Error(Errc::kUnsupported, pool.name + ": global average pool over a channel count that the library pads");
    }
    set_value(pool.outputs[0], program_.new_value(graph_.tensor(pool.outputs[0]).name, flat));
    result = {value(pool.outputs[0]).buffer, pd.dst_desc()};
  } else {
    result = output(pool.outputs[0], pd.dst_desc(), {}, id);
  }
  if (is_mean_3x3(pool, type_, tag)) {
    kernel(id, {from.buffer, result.buffer}, [shape = pixels(x), from = from.buffer, to = result.buffer](StepInput&) {
      mean_3x3(reinterpret_cast<const std::uint16_t*>(from->data), reinterpret_cast<std::uint16_t*>(to->data), shape);
    });
    return;
  }
  std::vector<Argument> arguments{{DNNL_ARG_SRC, from}, {DNNL_ARG_DST, result}};
  if (const Md workspace = pd.workspace_desc(); workspace.get_size() > 0) {
    plan->workspace = program_.new_value(pool.name + ":workspace", workspace);
    arguments.push_back({DNNL_ARG_WORKSPACE, plan->workspace});
  }
  primitive(id, pd, dnnl::pooling_forward(pd), std::move(arguments));
}

void Compiler::pool_backward_node(NodeId id) {
  const Node& backward = node(id);
  const Node& forward = node(backward.forward);
  const PoolPlan& plan = *pools_.at(backward.forward);
  const bool global = backward.kind == OpKind::kGlobalAvgPoolBackward;
  const TensorId diff_id = backward.inputs.back();
  const PoolBackward pd = pool_backward(program_.engine(), plan.algorithm, plan.forward.src_desc(),
                                        plan.forward.dst_desc(), plan.geometry, own_scratchpad(), plan.forward);
  TensorView diff;
  if (global) {
    const Shape& y = shape(diff_id);
    diff = in_layout(diff_id, Md({y[0], y[1]}, type_, Tag::nc));
    diff.desc = pd.diff_dst_desc();
  } else {
    diff = in_layout(diff_id, pd.diff_dst_desc());
  }
  const NodeId producer = graph_.tensor(forward.inputs[0]).producer;
  if (producer != kNoNode && mask_at_pool_[static_cast<std::size_t>(producer)]) {
    // Apply here the mask of the ReLU whose result the pool reads; see decide_fusions().
    const TensorView pooled = in_layout(backward.inputs[1], diff.desc);
    const TensorView masked =
        last_use(diff.buffer, id) ? diff : program_.new_value(graph_.tensor(diff_id).name + ":masked", diff.desc);
    masked_by_sign(id, pooled, diff, masked);
    diff = masked;
  }
  const TensorView into = output(backward.outputs[0], pd.diff_src_desc(), {}, id);
  if (is_mean_3x3(forward, type_, activation_tag(into.desc, type_))) {
    kernel(id, {diff.buffer, into.buffer},
           [shape = pixels(shape(diff_id)), from = diff.buffer, to = into.buffer](StepInput&) {
             mean_3x3_backward(reinterpret_cast<const std::uint16_t*>(from->data),
                               reinterpret_cast<std::uint16_t*>(to->data), shape);
           });
    return;
  }
  std::vector<Argument> arguments{{DNNL_ARG_DIFF_DST, diff}, {DNNL_ARG_DIFF_SRC, into}};
  if (plan.workspace) arguments.push_back({DNNL_ARG_WORKSPACE, plan.workspace});
  primitive(id, pd, dnnl::pooling_backward(pd), std::move(arguments));
}

}  // namespace hvd::models::onednn
