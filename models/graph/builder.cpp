#include "models/graph/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd::models {
namespace {

// A network at these limits fits into no machine's memory, and its element counts still fit into 63 bits.
constexpr std::int64_t kMaxBatch = 65536;
constexpr std::int64_t kMaxImageSize = 16384;
constexpr std::int64_t kMaxChannels = std::int64_t{1} << 20;

[[noreturn]] void refuse(std::string_view node, const std::string& what) {
  throw Error(Errc::kInvalidArgument, fmt::format("{}: {}", node, what));
}

void require_range(std::string_view node, const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  refuse(node, fmt::format("{} is {}, must be between {} and {}", what, value, low, high));
}

void require_image(std::string_view node, const Shape& x) {
  if (x.rank() != 4) refuse(node, "needs an input {n, h, w, c}, got " + x.text());
}

std::string geometry(const Window& w) {
  return fmt::format("kernel {}x{}, stride {}x{}, padding top {} bottom {} left {} right {}", w.kernel_h, w.kernel_w,
                     w.stride_h, w.stride_w, w.pad_top, w.pad_bottom, w.pad_left, w.pad_right);
}

// Returns the output shape {n, oh, ow, channels} of a window that slides over `x`. Rounds oh and ow down, as all
// frameworks do.
Shape windowed(std::string_view node, const Shape& x, const Window& w, std::int64_t channels) {
  require_image(node, x);
  if (w.kernel_h < 1 || w.kernel_w < 1 || w.stride_h < 1 || w.stride_w < 1) {
    refuse(node, "kernel and stride must be positive: " + geometry(w));
  }
  // A window must cover at least one real element, because the average and maximum of no elements are undefined.
  if (std::min({w.pad_top, w.pad_bottom, w.pad_left, w.pad_right}) < 0 ||
      std::max(w.pad_top, w.pad_bottom) >= w.kernel_h || std::max(w.pad_left, w.pad_right) >= w.kernel_w) {
    refuse(node, "padding must be at least 0 and smaller than the kernel: " + geometry(w));
  }
  const std::int64_t padded_h = x[1] + w.pad_top + w.pad_bottom;
  const std::int64_t padded_w = x[2] + w.pad_left + w.pad_right;
  if (padded_h < w.kernel_h || padded_w < w.kernel_w) {
    refuse(node, fmt::format("input {} is smaller than the window ({}); use larger images", x.text(), geometry(w)));
  }
  return Shape{x[0], (padded_h - w.kernel_h) / w.stride_h + 1, (padded_w - w.kernel_w) / w.stride_w + 1, channels};
}

std::string sub_name(std::string_view node, const char* suffix) { return std::string(node) + suffix; }

}  // namespace

GraphBuilder::GraphBuilder(std::string model, std::int64_t batch_size, std::int64_t image_size, std::int64_t classes) {
  require_range(model, "batch size", batch_size, 1, kMaxBatch);
  require_range(model, "image size", image_size, 1, kMaxImageSize);
  require_range(model, "number of classes", classes, 1, kMaxChannels);
  graph_.model = std::move(model);
  graph_.batch_size = batch_size;
  graph_.image_size = image_size;
  graph_.classes = classes;
  graph_.images = new_tensor("images", Shape{batch_size, image_size, image_size, 3}, TensorRole::kInput);
  graph_.labels = new_tensor("labels", Shape{batch_size}, TensorRole::kLabel);
}

TensorId GraphBuilder::new_tensor(std::string name, Shape shape, TensorRole role) {
  graph_.tensors.push_back({.name = std::move(name), .shape = shape, .role = role, .producer = kNoNode});
  return static_cast<TensorId>(graph_.tensors.size() - 1);
}

TensorId GraphBuilder::new_parameter(std::string name, Shape shape, Init init, bool decay) {
  const TensorId value = new_tensor(name, shape, TensorRole::kParameter);
  graph_.parameters.push_back(
      {.name = std::move(name), .value = value, .gradient = kNoTensor, .init = init, .decay = decay});
  return value;
}

NodeId GraphBuilder::new_node(OpKind kind, std::string_view name, std::vector<TensorId> inputs,
                              std::vector<TensorId> outputs, Attr attr) {
  const auto id = static_cast<NodeId>(graph_.nodes.size());
  if (std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) { return node.name == name; })) {
    refuse(name, "this node name is taken; names identify tensors across ranks and must be unique");
  }
  for (const TensorId output : outputs) graph_.tensors[static_cast<std::size_t>(output)].producer = id;
  graph_.nodes.push_back({.kind = kind,
                          .name = std::string(name),
                          .inputs = std::move(inputs),
                          .outputs = std::move(outputs),
                          .attr = attr,
                          .forward = kNoNode});
  return id;
}

TensorId GraphBuilder::conv(std::string_view name, TensorId x, std::int64_t out_channels, const Window& window,
                            bool bias, Init init) {
  require_range(name, "number of output channels", out_channels, 1, kMaxChannels);
  const Shape out = windowed(name, shape(x), window, out_channels);
  const Shape weight{out_channels, window.kernel_h, window.kernel_w, shape(x)[3]};
  std::vector<TensorId> inputs{x, new_parameter(sub_name(name, ".weight"), weight, init, true)};
  if (bias) inputs.push_back(new_parameter(sub_name(name, ".bias"), Shape{out_channels}, Init::kZero, false));
  const TensorId y = new_tensor(sub_name(name, ":y"), out, TensorRole::kActivation);
  new_node(OpKind::kConv, name, std::move(inputs), {y}, window);
  return y;
}

TensorId GraphBuilder::batch_norm(std::string_view name, TensorId x, const BatchNormAttr& attr) {
  require_image(name, shape(x));
  if (!(attr.epsilon > 0) || !(attr.momentum >= 0 && attr.momentum <= 1)) {
    refuse(name, "epsilon must be positive and momentum between 0 and 1");
  }
  const Shape out = shape(x);
  const Shape channels{out[3]};
  const TensorId gamma = new_parameter(sub_name(name, ".gamma"), channels, Init::kOne, false);
  const TensorId beta = new_parameter(sub_name(name, ".beta"), channels, Init::kZero, false);
  const TensorId running_mean = new_tensor(sub_name(name, ".running_mean"), channels, TensorRole::kState);
  const TensorId running_var = new_tensor(sub_name(name, ".running_var"), channels, TensorRole::kState);
  const TensorId y = new_tensor(sub_name(name, ":y"), out, TensorRole::kActivation);
  const TensorId mean = new_tensor(sub_name(name, ":mean"), channels, TensorRole::kStatistic);
  const TensorId inv_std = new_tensor(sub_name(name, ":inv_std"), channels, TensorRole::kStatistic);
  new_node(OpKind::kBatchNorm, name, {x, gamma, beta, running_mean, running_var}, {y, mean, inv_std}, attr);
  return y;
}

TensorId GraphBuilder::relu(std::string_view name, TensorId x) {
  const TensorId y = new_tensor(sub_name(name, ":y"), Shape(shape(x)), TensorRole::kActivation);
  new_node(OpKind::kRelu, name, {x}, {y}, {});
  return y;
}

TensorId GraphBuilder::max_pool(std::string_view name, TensorId x, const Window& window) {
  require_image(name, shape(x));
  const TensorId y =
      new_tensor(sub_name(name, ":y"), windowed(name, shape(x), window, shape(x)[3]), TensorRole::kActivation);
  new_node(OpKind::kMaxPool, name, {x}, {y}, window);
  return y;
}

TensorId GraphBuilder::avg_pool(std::string_view name, TensorId x, const Window& window) {
  require_image(name, shape(x));
  const TensorId y =
      new_tensor(sub_name(name, ":y"), windowed(name, shape(x), window, shape(x)[3]), TensorRole::kActivation);
  new_node(OpKind::kAvgPool, name, {x}, {y}, window);
  return y;
}

TensorId GraphBuilder::global_avg_pool(std::string_view name, TensorId x) {
  require_image(name, shape(x));
  const TensorId y = new_tensor(sub_name(name, ":y"), Shape{shape(x)[0], shape(x)[3]}, TensorRole::kActivation);
  new_node(OpKind::kGlobalAvgPool, name, {x}, {y}, {});
  return y;
}

TensorId GraphBuilder::fully_connected(std::string_view name, TensorId x, std::int64_t out_features, Init init) {
  require_range(name, "number of output features", out_features, 1, kMaxChannels);
  const Shape in = shape(x);
  if (in.rank() != 2 && in.rank() != 4) refuse(name, "needs an input {n, features} or {n, h, w, c}, got " + in.text());
  const Shape weight = in.rank() == 2 ? Shape{out_features, in[1]} : Shape{out_features, in[1], in[2], in[3]};
  const TensorId w = new_parameter(sub_name(name, ".weight"), weight, init, true);
  const TensorId bias = new_parameter(sub_name(name, ".bias"), Shape{out_features}, Init::kZero, false);
  const TensorId y = new_tensor(sub_name(name, ":y"), Shape{in[0], out_features}, TensorRole::kActivation);
  new_node(OpKind::kFullyConnected, name, {x, w, bias}, {y}, {});
  return y;
}

TensorId GraphBuilder::add(std::string_view name, TensorId a, TensorId b) {
  if (!(shape(a) == shape(b))) refuse(name, fmt::format("cannot add {} and {}", shape(a).text(), shape(b).text()));
  const TensorId y = new_tensor(sub_name(name, ":y"), Shape(shape(a)), TensorRole::kActivation);
  new_node(OpKind::kAdd, name, {a, b}, {y}, {});
  return y;
}

TensorId GraphBuilder::concat(std::string_view name, std::span<const TensorId> inputs) {
  if (inputs.empty()) refuse(name, "concat needs at least one input");
  const Shape first = shape(inputs[0]);
  std::int64_t channels = 0;
  for (const TensorId input : inputs) {
    const Shape& x = shape(input);
    require_image(name, x);
    if (x[0] != first[0] || x[1] != first[1] || x[2] != first[2]) {
      refuse(name, fmt::format("cannot concatenate {} and {} along the channels", first.text(), x.text()));
    }
    channels += x[3];
  }
  const TensorId y =
      new_tensor(sub_name(name, ":y"), Shape{first[0], first[1], first[2], channels}, TensorRole::kActivation);
  new_node(OpKind::kConcat, name, {inputs.begin(), inputs.end()}, {y}, {});
  return y;
}

TensorId GraphBuilder::dropout(std::string_view name, TensorId x, double rate) {
  if (!(rate >= 0 && rate < 1)) refuse(name, fmt::format("dropout rate is {:f}, must be in [0, 1)", rate));
  const TensorId y = new_tensor(sub_name(name, ":y"), Shape(shape(x)), TensorRole::kActivation);
  new_node(OpKind::kDropout, name, {x}, {y}, DropoutAttr{.rate = rate, .stream = dropout_streams_++});
  return y;
}

void GraphBuilder::softmax_cross_entropy(std::string_view name, TensorId logits, double weight) {
  const Shape in = shape(logits);
  if (in.rank() != 2 || in[1] != graph_.classes) {
    refuse(name, fmt::format("needs logits {}x{}, got {}", graph_.batch_size, graph_.classes, in.text()));
  }
  const TensorId loss = new_tensor(sub_name(name, ":loss"), Shape{1}, TensorRole::kLoss);
  const TensorId probabilities = new_tensor(sub_name(name, ":probabilities"), in, TensorRole::kActivation);
  graph_.losses.push_back(new_node(OpKind::kSoftmaxCrossEntropy, name, {logits, graph_.labels}, {loss, probabilities},
                                   LossAttr{.weight = weight}));
}

Graph GraphBuilder::build() && {
  if (graph_.losses.empty()) refuse(graph_.model, "the graph has no loss");
  std::vector<bool> used(graph_.tensors.size(), false);
  for (const Node& node : graph_.nodes) {
    for (const TensorId input : node.inputs) used[static_cast<std::size_t>(input)] = true;
    if (node.kind != OpKind::kSoftmaxCrossEntropy) continue;
    used[static_cast<std::size_t>(node.outputs[1])] = true;  // the probabilities are kept for backward
  }
  for (std::size_t id = 0; id < used.size(); ++id) {
    const TensorDesc& tensor = graph_.tensors[id];
    if (tensor.role != TensorRole::kActivation || used[id]) continue;
    refuse(graph_.node(tensor.producer).name, fmt::format("its output {} reaches no loss", tensor.shape.text()));
  }
  graph_.first_backward = graph_.nodes.size();
  return std::move(graph_);
}

}  // namespace hvd::models
