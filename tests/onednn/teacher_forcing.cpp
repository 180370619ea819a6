#include "tests/onednn/teacher_forcing.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/float16.h"
#include "models/dropout.h"
#include "models/onednn/compiler.h"
#include "models/onednn/parameters.h"
#include "models/onednn/program.h"
#include "models/onednn/threads.h"
#include "models/synthetic.h"
#include "tests/onednn/bounds.h"

namespace hvd::models::testing {
namespace {

using onednn::Md;
using onednn::Value;
using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

class NoSink final : public GradientSink {
 public:
  void gradient_ready(std::size_t /*parameter*/) override {}
};

Tensor absolute(const Tensor& of) {
  Tensor result = of;
  for (double& value : result.data) value = std::abs(value);
  return result;
}

class Comparer {
 public:
  Comparer(const Graph& graph, DataType compute, DataType gradient)
      : graph_(graph),
        compute_(compute),
        arena_(make_heap_arena()),
        program_(dnnl::engine(dnnl::engine::kind::cpu, 0)),
        parameters_(graph, gradient, program_),
        compiler_(graph, {.compute = compute, .seed = kSeed, .keep_tensors = true}, program_, parameters_) {
    compiler_.compile();
    parameters_.allocate(arena_.allocate);
    program_.bind();
    parameters_.initialise(kSeed);
    program_.refresh();
    for (std::size_t i = 0; i < graph.parameters.size(); ++i) parameter_of_[graph.parameters[i].gradient] = i;
  }

  Comparison run() {
    const Shape images = graph_.tensor(graph_.images).shape;
    std::vector<float> pixels(static_cast<std::size_t>(images.count()));
    labels_.resize(static_cast<std::size_t>(images[0]));
    synthetic_batch({.seed = 3, .image_elements = images.count() / images[0], .classes = graph_.classes}, 0, pixels,
                    labels_);
    const Batch batch{.images = pixels, .labels = labels_, .first_sample = 0, .step = 0};
    program_.set_external(compiler_.images(), pixels.data());
    NoSink sink;
    onednn::StepInput input{.batch = &batch, .loss = 0};
    program_.run(input, sink, false);
    compare_with_step(batch, input.loss);

    for (const Parameter& parameter : graph_.parameters) read_parameter(parameter);
    Tensor& first = known_[graph_.images] = zeros(images);
    std::copy(pixels.begin(), pixels.end(), first.data.begin());
    // The library rounds the images to its own type first.
    if (compute_ == DataType::kBF16) round_to_bf16(first);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) node(graph_.nodes[i]);
    return result_;
  }

 private:
  static constexpr std::uint64_t kSeed = 5;

  void compare_with_step(const Batch& batch, double loss) {
    const HeapArena arena = make_heap_arena();
    const auto step = make_onednn_step(
        graph_, {.compute = compute_, .gradient = parameters_.gradient_type(), .threads = 1, .seed = kSeed},
        arena.allocate);
    NoSink sink;
    const double step_loss = step->forward_backward(batch, sink);
    const auto kept = parameters_.gradient_arena();
    result_.equal_to_step = step_loss == loss && std::equal(kept.begin(), kept.end(), step->gradient_arena().begin(),
                                                            step->gradient_arena().end());
  }

  static void round_to_bf16(Tensor& tensor) {
    for (double& value : tensor.data) value = bf16_to_float(float_to_bf16(static_cast<float>(value)));
  }

  void read_parameter(const Parameter& parameter) {
    Tensor tensor = zeros(graph_.tensor(parameter.value).shape);
    std::vector<float> values(tensor.data.size());
    parameters_.read(static_cast<std::size_t>(&parameter - graph_.parameters.data()), values);
    std::copy(values.begin(), values.end(), tensor.data.begin());
    // Matrices are multiplied in the compute type; vectors stay fp32.
    if (compute_ == DataType::kBF16 && tensor.shape.rank() > 1) round_to_bf16(tensor);
    known_[parameter.value] = std::move(tensor);
  }

  /// The library's values of a tensor that exists.
  std::vector<float> library_values(const Value& value, const Shape& shape) {
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    const Md plain = shape.rank() == 2 ? Md({shape[0], shape[1]}, Type::f32, Tag::nc)
                                       : Md({shape[0], shape[3], shape[1], shape[2]}, Type::f32, Tag::nhwc);
    dnnl::memory from(value.desc, program_.engine(), value.buffer->data);
    dnnl::memory to(plain, program_.engine(), values.data());
    dnnl::reorder(from, to).execute(program_.stream(), from, to);
    program_.stream().wait();
    return values;
  }

  /// Compares what the reference says with what the library has, where it has it, and goes on with the latter.
  void check(const Node& of, TensorId id, Tensor expected, bool stored_in_compute_type) {
    const TensorDesc& desc = graph_.tensor(id);
    std::vector<float> actual;
    if (desc.role == TensorRole::kGradient) {
      actual = std::vector<float>(expected.data.size());
      parameters_.read_gradient(parameter_of_.at(id), actual);
      stored_in_compute_type = parameters_.gradient_type() == DataType::kBF16;
    } else if (const Value value = compiler_.tensor(id)) {
      actual = library_values(value, desc.shape);
      stored_in_compute_type = stored_in_compute_type && compute_ == DataType::kBF16;
    } else {
      known_[id] = std::move(expected);  // fused away: carried on with its bound
      return;
    }
    Disagreement worst{.node = of.name, .tensor = desc.name, .error = 0, .bound = 0};
    double worst_ratio = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      double bound = expected.bound.empty() ? 0 : expected.bound[i];
      if (stored_in_compute_type) bound += 0.5 * kEpsilonBf16 * (std::abs(expected.data[i]) + bound);
      bound += kEpsilon * std::abs(expected.data[i]) + 0x1p-126;  // the final store, and gradual underflow
      const double error = std::abs(static_cast<double>(actual[i]) - expected.data[i]);
      const double ratio = std::isfinite(actual[i]) ? error / bound : 1e30;
      if (ratio > worst_ratio) {
        worst_ratio = ratio;
        worst.error = error;
        worst.bound = bound;
      }
    }
    ++result_.tensors;
    result_.elements += actual.size();
    if (worst_ratio > result_.worst_ratio) {
      result_.worst_ratio = worst_ratio;
      result_.worst = of.name + " / " + desc.name;
    }
    if (worst_ratio > 1) result_.failures.push_back(worst);
    Tensor& forced = known_[id] = zeros(desc.shape);
    std::copy(actual.begin(), actual.end(), forced.data.begin());
  }

  [[nodiscard]] double storage_epsilon() const { return compute_ == DataType::kBF16 ? kEpsilonBf16 : kEpsilon; }
  const Tensor& in(TensorId id) const { return known_.at(id); }
  Tensor like(TensorId id) const { return zeros(graph_.tensor(id).shape); }

  void weighted(const Node& of);
  void node(const Node& of);
  void backward(const Node& of);

  const Graph& graph_;
  DataType compute_;
  HeapArena arena_;
  onednn::Program program_;
  onednn::Parameters parameters_;
  onednn::Compiler compiler_;
  std::vector<std::int32_t> labels_;
  std::map<TensorId, Tensor> known_;
  std::map<TensorId, std::size_t> parameter_of_;
  Comparison result_;
};

/// Convolutions and fully connected layers: linear in each operand, so the bound is the same operation on
/// absolute values.
void Comparer::weighted(const Node& of) {
  const bool conv =
      of.kind == OpKind::kConv || of.kind == OpKind::kConvBackwardWeights || of.kind == OpKind::kConvBackwardData;
  const Window window = conv ? std::get<Window>(of.attr) : Window{};
  const Tensor& a = in(of.inputs[0]);
  const Tensor& b = in(of.inputs[1]);
  const Tensor* bias = of.inputs.size() > 2 ? &in(of.inputs[2]) : nullptr;
  const auto run = [&](const Tensor& left, const Tensor& right, const Tensor& third, std::vector<Tensor>& outs) {
    const reference::In none;
    const reference::In last = bias == nullptr ? none : third.in();
    const reference::Out second = outs.size() > 1 ? outs[1].out() : reference::Out{};
    using namespace reference;
    switch (of.kind) {
      case OpKind::kConv: reference::conv(window, left.in(), right.in(), last, outs[0].out()); return;
      case OpKind::kConvBackwardWeights:
        conv_backward_weights(window, left.in(), right.in(), outs[0].out(), second);
        return;
      case OpKind::kConvBackwardData: conv_backward_data(window, left.in(), right.in(), outs[0].out()); return;
      case OpKind::kFullyConnected: fully_connected(left.in(), right.in(), last, outs[0].out()); return;
      case OpKind::kFullyConnectedBackwardWeights:
        fully_connected_backward_weights(left.in(), right.in(), outs[0].out(), second);
        return;
      default: fully_connected_backward_data(left.in(), right.in(), outs[0].out()); return;
    }
  };
  std::vector<Tensor> exact;
  for (const TensorId output : of.outputs) exact.push_back(like(output));
  std::vector<Tensor> magnitude = exact;
  run(a, b, bias == nullptr ? Tensor{} : *bias, exact);
  run(absolute(a), absolute(b), bias == nullptr ? Tensor{} : absolute(*bias), magnitude);

  // Terms of the sum behind one output element.
  const Shape& weights =
      graph_
          .tensor(of.kind == OpKind::kConvBackwardWeights || of.kind == OpKind::kFullyConnectedBackwardWeights
                      ? of.outputs[0]
                  : of.kind == OpKind::kConv || of.kind == OpKind::kFullyConnected ? of.inputs[1]
                                                                                   : of.inputs[0])
          .shape;
  const Shape& dy = graph_.tensor(of.inputs[1]).shape;
  double terms = 0;
  switch (of.kind) {
    case OpKind::kConv:
    case OpKind::kFullyConnected: terms = static_cast<double>(weights.count() / weights[0]) + 1; break;
    case OpKind::kConvBackwardData: terms = static_cast<double>(weights.count() / weights[3]); break;
    case OpKind::kFullyConnectedBackwardData: terms = static_cast<double>(weights[0]); break;
    default: terms = static_cast<double>(dy.count() / dy[dy.rank() - 1]); break;
  }
  const NodeId forward = of.forward == kNoNode ? static_cast<NodeId>(&of - graph_.nodes.data()) : of.forward;
  const bool winograd = conv && compiler_.is_winograd(forward);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    exact[i].bound = winograd && i == 0 ? winograd_bound(terms, magnitude[i]) : sum_bound(terms, magnitude[i]);
    // The logits stay fp32.
    check(of, of.outputs[i], exact[i], true);
  }
}

void Comparer::node(const Node& of) {
  if (is_backward(of.kind)) return backward(of);
  const TensorId y = of.outputs[0];
  Tensor out = like(y);
  switch (of.kind) {
    case OpKind::kConv:
    case OpKind::kFullyConnected: return weighted(of);
    case OpKind::kBatchNorm: {
      BatchNormResult r =
          batch_norm(std::get<BatchNormAttr>(of.attr), in(of.inputs[0]), in(of.inputs[1]), in(of.inputs[2]));
      check(of, y, std::move(r.y), true);
      known_[of.outputs[1]] = std::move(r.mean);
      known_[of.outputs[2]] = std::move(r.inv_std);
      return;
    }
    case OpKind::kRelu:
      reference::relu(in(of.inputs[0]).in(), out.out());
      out.bound = in(of.inputs[0]).bound;
      return check(of, y, std::move(out), true);
    case OpKind::kMaxPool:
      reference::max_pool(std::get<Window>(of.attr), in(of.inputs[0]).in(), out.out());
      return check(of, y, std::move(out), true);
    case OpKind::kAvgPool:
    case OpKind::kGlobalAvgPool: {
      Tensor magnitude = out;
      const Tensor positive = absolute(in(of.inputs[0]));
      const Shape& x = graph_.tensor(of.inputs[0]).shape;
      double terms = static_cast<double>(x[1] * x[2]);
      if (of.kind == OpKind::kAvgPool) {
        const auto& window = std::get<Window>(of.attr);
        terms = window.kernel_h * window.kernel_w;
        reference::avg_pool(window, in(of.inputs[0]).in(), out.out());
        reference::avg_pool(window, positive.in(), magnitude.out());
      } else {
        reference::global_avg_pool(in(of.inputs[0]).in(), out.out());
        reference::global_avg_pool(positive.in(), magnitude.out());
      }
      out.bound = sum_bound(terms, magnitude);
      return check(of, y, std::move(out), true);
    }
    case OpKind::kAdd:
      reference::add(in(of.inputs[0]).in(), in(of.inputs[1]).in(), out.out());
      out.bound = sum_bound(1, absolute(out));
      return check(of, y, std::move(out), true);
    case OpKind::kConcat: {
      std::vector<reference::In> inputs;
      for (const TensorId input : of.inputs) inputs.push_back(in(input).in());
      reference::concat(inputs, out.out());
      return check(of, y, std::move(out), true);
    }
    case OpKind::kDropout: {
      std::vector<std::uint8_t> keep(out.data.size());
      const auto& attr = std::get<DropoutAttr>(of.attr);
      dropout_mask(attr,
                   {.seed = kSeed,
                    .step = 0,
                    .first_sample = 0,
                    .features = static_cast<std::uint64_t>(out.shape.count() / out.shape[0])},
                   keep);
      reference::dropout(keep, dropout_scale(attr), in(of.inputs[0]).in(), out.out());
      return check(of, y, std::move(out), true);
    }
    case OpKind::kSoftmaxCrossEntropy: {
      const Tensor& logits = in(of.inputs[0]);
      Tensor p = like(of.outputs[1]);
      (void)reference::softmax_cross_entropy(logits.in(), labels_, p.out());
      const auto classes = static_cast<std::size_t>(logits.shape[1]);
      p.bound.resize(p.data.size());
      for (std::size_t row = 0; row < labels_.size(); ++row) {
        const auto begin = logits.data.begin() + static_cast<std::ptrdiff_t>(row * classes);
        const double largest = *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(classes));
        double widest = 0;
        for (std::size_t i = 0; i < classes; ++i) widest = std::max(widest, largest - begin[static_cast<long>(i)]);
        // exp of (x - max), whose rounding is an absolute error of the exponent; then the sum and the quotient.
        for (std::size_t i = 0; i < classes; ++i) {
          p.bound[row * classes + i] = p.data[row * classes + i] * kEpsilon * (2 * widest + 4);
        }
      }
      return check(of, of.outputs[1], std::move(p), false);
    }
    default: return;
  }
}

void Comparer::backward(const Node& of) {
  switch (of.kind) {
    case OpKind::kConvBackwardWeights:
    case OpKind::kConvBackwardData:
    case OpKind::kFullyConnectedBackwardWeights:
    case OpKind::kFullyConnectedBackwardData: return weighted(of);
    case OpKind::kBatchNormBackward: {
      BatchNormDiffs r =
          batch_norm_backward(in(of.inputs[0]), in(of.inputs[1]), in(of.inputs[2]), in(of.inputs[3]), in(of.inputs[4]));
      check(of, of.outputs[0], std::move(r.dx), true);
      check(of, of.outputs[1], std::move(r.dgamma), false);
      return check(of, of.outputs[2], std::move(r.dbeta), false);
    }
    case OpKind::kConcatBackward: {
      std::vector<Tensor> tensors;
      std::vector<reference::Out> outs;
      for (const TensorId output : of.outputs) tensors.push_back(like(output));
      for (Tensor& tensor : tensors) outs.push_back(tensor.out());
      reference::concat_backward(in(of.inputs[0]).in(), outs);
      for (std::size_t i = 0; i < tensors.size(); ++i) check(of, of.outputs[i], tensors[i], true);
      return;
    }
    default: break;
  }
  const TensorId dx = of.outputs[0];
  Tensor out = like(dx);
  switch (of.kind) {
    case OpKind::kReluBackward:
      reference::relu_backward(in(of.inputs[0]).in(), in(of.inputs[1]).in(), out.out());
      out.bound = in(of.inputs[1]).bound;
      break;
    case OpKind::kMaxPoolBackward: {
      const auto& window = std::get<Window>(of.attr);
      reference::max_pool_backward(window, in(of.inputs[0]).in(), in(of.inputs[1]).in(), in(of.inputs[2]).in(),
                                   out.out());
      Tensor magnitude = like(dx);
      const Tensor positive = absolute(in(of.inputs[2]));
      reference::max_pool_backward(window, in(of.inputs[0]).in(), in(of.inputs[1]).in(), positive.in(),
                                   magnitude.out());
      // The library adds overlapping windows up in the diff itself, in its type.
      out.bound = sum_bound(window.kernel_h * window.kernel_w, magnitude, storage_epsilon());
      break;
    }
    case OpKind::kAvgPoolBackward: {
      const auto& window = std::get<Window>(of.attr);
      Tensor magnitude = like(dx);
      reference::avg_pool_backward(window, in(of.inputs[0]).in(), out.out());
      reference::avg_pool_backward(window, absolute(in(of.inputs[0])).in(), magnitude.out());
      // The library adds overlapping windows up in the diff itself, in its type.
      out.bound = sum_bound(window.kernel_h * window.kernel_w, magnitude, storage_epsilon());
      break;
    }
    case OpKind::kGlobalAvgPoolBackward: reference::global_avg_pool_backward(in(of.inputs[0]).in(), out.out()); break;
    case OpKind::kDropoutBackward: {
      std::vector<std::uint8_t> keep(out.data.size());
      const auto& attr = std::get<DropoutAttr>(of.attr);
      dropout_mask(attr,
                   {.seed = kSeed,
                    .step = 0,
                    .first_sample = 0,
                    .features = static_cast<std::uint64_t>(out.shape.count() / out.shape[0])},
                   keep);
      reference::dropout(keep, dropout_scale(attr), in(of.inputs[0]).in(), out.out());
      break;
    }
    case OpKind::kSoftmaxCrossEntropyBackward: {
      const double weight = std::get<LossAttr>(of.attr).weight;
      reference::softmax_cross_entropy_backward(weight, in(of.inputs[0]).in(), labels_, out.out());
      // p - 1 rounds once in units of 1, then the factor twice.
      out.bound.assign(out.data.size(), 2 * kEpsilon * weight / static_cast<double>(out.shape[0]));
      break;
    }
    case OpKind::kAccumulate: {
      std::vector<reference::In> parts;
      Tensor magnitude = like(dx);
      std::vector<Tensor> positive;
      for (const TensorId input : of.inputs) {
        parts.push_back(in(input).in());
        positive.push_back(absolute(in(input)));
      }
      reference::accumulate(parts, out.out());
      parts.clear();
      for (const Tensor& part : positive) parts.push_back(part.in());
      reference::accumulate(parts, magnitude.out());
      out.bound = sum_bound(static_cast<double>(of.inputs.size()), magnitude);
      break;
    }
    default: return;
  }
  check(of, dx, std::move(out), true);
}

}  // namespace

Comparison compare_operations(const Graph& graph, DataType compute, DataType gradient) {
  const onednn::ThreadScope threads(1);
  return Comparer(graph, compute, gradient).run();
}

}  // namespace hvd::models::testing
