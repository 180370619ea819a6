#include "tests/onednn/expected.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/random.h"

namespace hvd::models::testing {
namespace {

bool is_conv(OpKind kind) {
  return kind == OpKind::kConv || kind == OpKind::kConvBackwardWeights || kind == OpKind::kConvBackwardData;
}

/// Returns the number of products that are summed for one element of the first output of a convolution or a fully
/// connected layer, or of one of their gradients.
double terms_of(const Graph& graph, const Node& node) {
  const auto shape = [&](TensorId id) -> const Shape& { return graph.tensor(id).shape; };
  switch (node.kind) {
    case OpKind::kConv:
    case OpKind::kFullyConnected: {
      const Shape& weights = shape(node.inputs[1]);
      return static_cast<double>(weights.count() / weights[0]) + 1;  // + 1 for the bias
    }
    case OpKind::kConvBackwardData: {
      const Shape& weights = shape(node.inputs[0]);
      return static_cast<double>(weights.count() / weights[3]);
    }
    case OpKind::kFullyConnectedBackwardData: return static_cast<double>(shape(node.inputs[0])[0]);
    default: {  // a weight gradient sums over images and pixels
      const Shape& dy = shape(node.inputs[1]);
      return static_cast<double>(dy.count() / dy[dy.rank() - 1]);
    }
  }
}

class Recomputation {
 public:
  Recomputation(const Graph& graph, const Node& node, const std::map<TensorId, Tensor>& known,
                const Circumstances& with)
      : graph_(graph), node_(node), known_(known), with_(with) {}

  std::vector<Expected> run();

 private:
  [[nodiscard]] const Tensor& in(std::size_t index) const { return known_.at(node_.inputs[index]); }
  [[nodiscard]] Tensor output(std::size_t index = 0) const { return zeros(graph_.tensor(node_.outputs[index]).shape); }
  [[nodiscard]] const Window& window() const { return std::get<Window>(node_.attr); }
  [[nodiscard]] double window_size() const { return static_cast<double>(window().kernel_h * window().kernel_w); }
  /// Returns epsilon for sums that the library accumulates in a tensor, and therefore in the type of that tensor.
  [[nodiscard]] double storage_epsilon() const { return with_.compute == DataType::kBF16 ? kEpsilonBf16 : kEpsilon; }

  void give(std::size_t output, Tensor tensor, bool stored_in_compute_type = true) {
    expected_.push_back({node_.outputs[output], std::move(tensor), stored_in_compute_type});
  }
  /// Computes an operation `apply(In, Out)` that is linear in its input. The error bound therefore comes from the same
  /// operation on absolute values.
  template <class Apply>
  void linear(const Tensor& x, double terms, double epsilon, const Apply& apply) {
    Tensor exact = output(), magnitude = output();
    apply(x.in(), exact.out());
    apply(absolute(x).in(), magnitude.out());
    exact.bound = sum_bound(terms, magnitude, epsilon);
    give(0, std::move(exact));
  }
  void weighted();
  void weighted_once(const Tensor& a, const Tensor& b, const Tensor& bias, std::vector<Tensor>& outs) const;
  void norm_forward();
  void norm_backward();
  void rectifier(std::size_t of_diff);
  void concat();
  void concat_backward();
  void accumulate();
  void dropout();
  void softmax();
  void softmax_backward();

  const Graph& graph_;
  const Node& node_;
  const std::map<TensorId, Tensor>& known_;
  const Circumstances& with_;
  std::vector<Expected> expected_;
};

std::vector<Expected> Recomputation::run() {
  using reference::In;
  using reference::Out;
  switch (node_.kind) {
    case OpKind::kConv:
    case OpKind::kFullyConnected:
    case OpKind::kConvBackwardWeights:
    case OpKind::kConvBackwardData:
    case OpKind::kFullyConnectedBackwardWeights:
    case OpKind::kFullyConnectedBackwardData: weighted(); break;
    case OpKind::kBatchNorm: norm_forward(); break;
    case OpKind::kBatchNormBackward: norm_backward(); break;
    case OpKind::kRelu: rectifier(0); break;
    case OpKind::kReluBackward: rectifier(1); break;
    case OpKind::kMaxPool: {
      Tensor y = output();
      reference::max_pool(window(), in(0).in(), y.out());
      give(0, std::move(y));
      break;
    }
    case OpKind::kMaxPoolBackward:
      linear(in(2), window_size(), storage_epsilon(), [&](const In& dy, const Out& dx) {
        reference::max_pool_backward(window(), in(0).in(), in(1).in(), dy, dx);
      });
      break;
    case OpKind::kAvgPool:
      linear(in(0), window_size(), kEpsilon, [&](const In& x, const Out& y) { reference::avg_pool(window(), x, y); });
      break;
    case OpKind::kAvgPoolBackward:
      linear(in(0), window_size(), storage_epsilon(),
             [&](const In& dy, const Out& dx) { reference::avg_pool_backward(window(), dy, dx); });
      break;
    case OpKind::kGlobalAvgPool: {
      const Shape& x = in(0).shape;
      linear(in(0), static_cast<double>(x[1] * x[2]), kEpsilon, reference::global_avg_pool);
      break;
    }
    case OpKind::kGlobalAvgPoolBackward: {
      Tensor dx = output();
      reference::global_avg_pool_backward(in(0).in(), dx.out());
      give(0, std::move(dx));
      break;
    }
    case OpKind::kAdd: {
      Tensor y = output();
      reference::add(in(0).in(), in(1).in(), y.out());
      y.bound = sum_bound(1, absolute(y));
      give(0, std::move(y));
      break;
    }
    case OpKind::kAccumulate: accumulate(); break;
    case OpKind::kConcat: concat(); break;
    case OpKind::kConcatBackward: concat_backward(); break;
    case OpKind::kDropout:
    case OpKind::kDropoutBackward: dropout(); break;
    case OpKind::kSoftmaxCrossEntropy: softmax(); break;
    case OpKind::kSoftmaxCrossEntropyBackward: softmax_backward(); break;
  }
  return std::move(expected_);
}

void Recomputation::weighted_once(const Tensor& a, const Tensor& b, const Tensor& bias,
                                  std::vector<Tensor>& outs) const {
  using namespace reference;
  const In third = bias.data.empty() ? In{} : bias.in();
  const Out first = outs[0].out();
  const Out second = outs.size() > 1 ? outs[1].out() : Out{};
  switch (node_.kind) {
    case OpKind::kConv: return conv(window(), a.in(), b.in(), third, first);
    case OpKind::kConvBackwardWeights: return conv_backward_weights(window(), a.in(), b.in(), first, second);
    case OpKind::kConvBackwardData: return conv_backward_data(window(), a.in(), b.in(), first);
    case OpKind::kFullyConnected: return fully_connected(a.in(), b.in(), third, first);
    case OpKind::kFullyConnectedBackwardWeights: return fully_connected_backward_weights(a.in(), b.in(), first, second);
    default: return fully_connected_backward_data(a.in(), b.in(), first);
  }
}

/// Computes an operation that is linear in each operand. The error bound therefore comes from the same operation on
/// absolute values.
void Recomputation::weighted() {
  const Tensor bias = node_.inputs.size() > 2 ? in(2) : Tensor{};
  std::vector<Tensor> exact;
  for (std::size_t i = 0; i < node_.outputs.size(); ++i) exact.push_back(output(i));
  std::vector<Tensor> magnitude = exact;
  weighted_once(in(0), in(1), bias, exact);
  weighted_once(absolute(in(0)), absolute(in(1)), absolute(bias), magnitude);
  const double terms = terms_of(graph_, node_);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const bool winograd = is_conv(node_.kind) && with_.winograd && i == 0;
    exact[i].bound = winograd ? winograd_bound(terms, magnitude[i]) : sum_bound(terms, magnitude[i]);
    give(i, std::move(exact[i]));
  }
}

void Recomputation::norm_forward() {
  BatchNormResult r = batch_norm(std::get<BatchNormAttr>(node_.attr), in(0), in(1), in(2));
  give(0, std::move(r.y));
  give(1, std::move(r.mean), false);
  give(2, std::move(r.inv_std), false);
}

void Recomputation::norm_backward() {
  BatchNormDiffs r = testing::batch_norm_backward(in(0), in(1), in(2), in(3), in(4));
  give(0, std::move(r.dx));
  give(1, std::move(r.dgamma), false);
  give(2, std::move(r.dbeta), false);
}

/// Passes input number `of_diff` on where input 0 is positive. In the forward pass `of_diff` is 0: input 0 decides
/// about itself.
void Recomputation::rectifier(std::size_t of_diff) {
  Tensor out = output();
  if (of_diff == 0) {
    reference::relu(in(0).in(), out.out());
  } else {
    reference::relu_backward(in(0).in(), in(of_diff).in(), out.out());
  }
  out.bound = in(of_diff).bound;
  give(0, std::move(out));
}

void Recomputation::concat() {
  std::vector<reference::In> inputs;
  for (std::size_t i = 0; i < node_.inputs.size(); ++i) inputs.push_back(in(i).in());
  Tensor y = output();
  reference::concat(inputs, y.out());
  give(0, std::move(y));
}

void Recomputation::concat_backward() {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < node_.outputs.size(); ++i) tensors.push_back(output(i));
  std::vector<reference::Out> outs;
  for (Tensor& tensor : tensors) outs.push_back(tensor.out());
  reference::concat_backward(in(0).in(), outs);
  for (std::size_t i = 0; i < tensors.size(); ++i) give(i, std::move(tensors[i]));
}

void Recomputation::accumulate() {
  std::vector<Tensor> positive;
  for (std::size_t i = 0; i < node_.inputs.size(); ++i) positive.push_back(absolute(in(i)));
  std::vector<reference::In> parts, magnitudes;
  for (std::size_t i = 0; i < node_.inputs.size(); ++i) {
    parts.push_back(in(i).in());
    magnitudes.push_back(positive[i].in());
  }
  Tensor sum = output(), magnitude = output();
  reference::accumulate(parts, sum.out());
  reference::accumulate(magnitudes, magnitude.out());
  sum.bound = sum_bound(static_cast<double>(parts.size()), magnitude);
  give(0, std::move(sum));
}

void Recomputation::dropout() {
  Tensor out = output();
  std::vector<std::uint8_t> keep(out.data.size());
  const auto& attr = std::get<DropoutAttr>(node_.attr);
  const auto features = static_cast<std::uint64_t>(out.shape.count() / out.shape[0]);
  dropout_mask(attr, {.seed = with_.seed, .step = 0, .first_sample = 0, .features = features}, keep);
  reference::dropout(keep, dropout_scale(attr), in(0).in(), out.out());
  give(0, std::move(out));
}

void Recomputation::softmax() {
  const Tensor& logits = in(0);
  Tensor p = output(1);
  (void)reference::softmax_cross_entropy(logits.in(), with_.labels, p.out());
  const auto classes = static_cast<std::size_t>(logits.shape[1]);
  p.bound.resize(p.data.size());
  for (std::size_t row = 0; row < with_.labels.size(); ++row) {
    const auto values = std::span(logits.data).subspan(row * classes, classes);
    const auto [smallest, largest] = std::minmax_element(values.begin(), values.end());
    const double widest = *largest - *smallest;
    // Rounding (x - max) gives the argument of exp an absolute error. The sum and the quotient add relative errors.
    for (std::size_t i = row * classes; i < (row + 1) * classes; ++i)
      p.bound[i] = p.data[i] * kEpsilon * (2 * widest + 4);
  }
  give(1, std::move(p), false);
}

void Recomputation::softmax_backward() {
  const double weight = std::get<LossAttr>(node_.attr).weight;
  Tensor dx = output();
  reference::softmax_cross_entropy_backward(weight, in(0).in(), with_.labels, dx.out());
  // p - 1 has one rounding, relative to 1. Its product with the factor has two more roundings.
  dx.bound.assign(dx.data.size(), 2 * kEpsilon * weight / static_cast<double>(dx.shape[0]));
  give(0, std::move(dx));
}

}  // namespace

Tensor absolute(const Tensor& tensor) {
  Tensor result{.shape = tensor.shape, .data = std::vector<double>(tensor.data.size()), .bound = {}};
  std::transform(tensor.data.begin(), tensor.data.end(), result.data.begin(),
                 [](double value) { return std::abs(value); });
  return result;
}

std::vector<Expected> expected_outputs(const Graph& graph, const Node& node, const std::map<TensorId, Tensor>& known,
                                       const Circumstances& with) {
  return Recomputation(graph, node, known, with).run();
}

}  // namespace hvd::models::testing
