// The network as plain data: tensors, nodes, attributes. GraphBuilder (builder.h) builds a Graph, differentiate()
// (autodiff.h) adds explicit backward nodes, and the backends execute the Graph. A Graph is immutable once built; any
// thread may read it. A Graph does not name a library, a layout or an element type: the backend chooses them.
//
// Logical shapes (all row-major, last dimension fastest):
//   activation        {n, h, w, c} or {n, features}
//   convolution weight {out, kh, kw, in}
//   fully connected weight {out, features} or, on a 4-D input, {out, h, w, c}
//   bias, batch-norm gamma / beta / running statistics / saved statistics {c}
//   labels {n}, loss {1}
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hvd::models {

using TensorId = std::int32_t;
using NodeId = std::int32_t;
inline constexpr TensorId kNoTensor = -1;
inline constexpr NodeId kNoNode = -1;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t operator[](int axis) const { return dims_.at(static_cast<std::size_t>(axis)); }
  /// Returns the number of elements.
  [[nodiscard]] std::int64_t count() const noexcept;
  /// Returns a text like "8x224x224x3".
  [[nodiscard]] std::string text() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, 4> dims_{};
  int rank_ = 0;
};

enum class TensorRole : std::uint8_t {
  kInput,       ///< images
  kLabel,       ///< class indices, int32
  kParameter,   ///< trained weights
  kState,       ///< running statistics, which forward updates; not trained
  kActivation,  ///< produced by forward
  kStatistic,   ///< saved batch mean and inverse standard deviation
  kLoss,        ///< scalar
  kGradient,    ///< derivative of the loss with respect to a parameter
  kDiff,        ///< derivative of the loss with respect to an activation
};

struct TensorDesc {
  std::string name;
  Shape shape;
  TensorRole role = TensorRole::kActivation;
  NodeId producer = kNoNode;  ///< node that computes the tensor; kNoNode for inputs, labels, parameters, states
};

// clang-format off
enum class OpKind : std::uint8_t {
  //                          inputs                                    outputs
  kConv,                   // x, w [, bias]                             y
  kBatchNorm,              // x, gamma, beta, running_mean, running_var y, mean, inv_std   (training mode)
  kRelu,                   // x                                         y
  kMaxPool,                // x                                         y   (padding counts as -infinity)
  kAvgPool,                // x                                         y   (padding excluded from the count)
  kGlobalAvgPool,          // x {n,h,w,c}                               y {n,c}
  kFullyConnected,         // x, w, bias                                y {n, out}
  kAdd,                    // a, b                                      y
  kConcat,                 // x0, x1, ... (along c)                     y
  kDropout,                // x                                         y   (inverted: kept values scaled by 1/keep)
  kSoftmaxCrossEntropy,    // logits {n, k}, labels {n}                 loss {1} (mean over n), probabilities {n, k}
  kConvBackwardWeights,    // x, dy                                     dw [, dbias]
  kConvBackwardData,       // w, dy                                     dx
  kBatchNormBackward,      // x, gamma, mean, inv_std, dy               dx, dgamma, dbeta
  kReluBackward,           // y, dy                                     dx
  kMaxPoolBackward,        // x, y, dy                                  dx  (first maximum in row-major order wins)
  kAvgPoolBackward,        // dy                                        dx
  kGlobalAvgPoolBackward,  // dy                                        dx
  kFullyConnectedBackwardWeights,  // x, dy                             dw, dbias
  kFullyConnectedBackwardData,     // w, dy                             dx
  kConcatBackward,         // dy                                        dx0, dx1, ...
  kDropoutBackward,        // dy                                        dx
  kSoftmaxCrossEntropyBackward,    // probabilities, labels             dlogits (includes loss_weight / n)
  kAccumulate,             // d0, d1, ...                               their sum, for an activation used several times
};
// clang-format on

std::string_view name(OpKind kind) noexcept;
[[nodiscard]] bool is_backward(OpKind kind) noexcept;

struct Window {  ///< geometry of a convolution or a pooling
  int kernel_h = 1, kernel_w = 1;
  int stride_h = 1, stride_w = 1;
  int pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
  bool operator==(const Window&) const = default;
};
struct BatchNormAttr {
  double epsilon = 1e-5;
  double momentum = 0.1;  ///< running = (1 - momentum) * running + momentum * batch (unbiased variance)
};
struct DropoutAttr {
  double rate = 0.5;         ///< probability of zeroing
  std::uint64_t stream = 0;  ///< Philox stream; global sample s takes its `features` elements from s * features on
};
struct LossAttr {
  double weight = 1.0;  ///< factor of this loss in the total (auxiliary head: 0.4)
};
using Attr = std::variant<std::monostate, Window, BatchNormAttr, DropoutAttr, LossAttr>;

struct Node {
  OpKind kind{};
  std::string name;  ///< unique; a backward node has its forward node's name plus a suffix
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;
  Attr attr;                 ///< attributes of the forward node, copied to its backward nodes
  NodeId forward = kNoNode;  ///< for a backward node: the forward node that it differentiates; else kNoNode
};

enum class Init : std::uint8_t { kHeNormal, kGlorotUniform, kNormal001, kZero, kOne };

struct Parameter {
  std::string name;
  TensorId value = kNoTensor;
  TensorId gradient = kNoTensor;  ///< the gradient's tensor; kNoTensor before differentiate()
  Init init = Init::kHeNormal;
  bool decay = true;  ///< true for weights, to which weight decay applies; false for biases and batch-norm parameters
};

struct Graph {
  std::string model;  ///< "resnet101"
  std::int64_t batch_size = 0;
  std::int64_t image_size = 0;
  std::int64_t classes = 0;
  std::vector<TensorDesc> tensors;
  std::vector<Node> nodes;  ///< in execution order: forward, then backward
  /// Before differentiate(), the parameters are in order of creation. Afterwards the parameters are **in the order in
  /// which backward produces their gradients**. Arenas have this order, too.
  std::vector<Parameter> parameters;
  TensorId images = kNoTensor;
  TensorId labels = kNoTensor;
  std::vector<NodeId> losses;      ///< softmax cross-entropy nodes, the main loss first
  std::size_t first_backward = 0;  ///< index of the first backward node; nodes.size() before differentiate()

  [[nodiscard]] const TensorDesc& tensor(TensorId id) const { return tensors.at(static_cast<std::size_t>(id)); }
  [[nodiscard]] const Node& node(NodeId id) const { return nodes.at(static_cast<std::size_t>(id)); }
  /// Returns the number of elements of all parameters together.
  [[nodiscard]] std::int64_t parameter_count() const;
};

}  // namespace hvd::models
