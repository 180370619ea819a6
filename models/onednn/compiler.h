// Compiles a differentiated graph into a Program (program.h): chooses primitives, layouts and fusions once,
// at construction. Nothing of it is needed when the program runs.
//
// Fusions, decided in analyse() from the graph alone:
//   conv + bias + relu        one primitive (post-operation); its backward masks by the output's sign
//   batch norm + relu         one primitive; the mask lives in the primitive's workspace, so that the
//                             rectifier's backward costs nothing
//   add + relu                one kernel, which leaves a bit mask for backward
//   relu before a max pool    the mask is applied to the pooled diff, which is several times smaller
//   accumulate + relu backward  one kernel
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/onednn/parameters.h"
#include "models/onednn/program.h"

namespace hvd::models::onednn {

struct CompileOptions {
  DataType compute = DataType::kF32;
  std::uint64_t seed = 1;  ///< dropout
  bool winograd = true;    ///< as StepOptions
  /// Every tensor keeps its own memory to the end of the step, so that a test can look at it.
  bool keep_tensors = false;
};

class Compiler {
 public:
  /// All references must outlive the compiler; `program` and `parameters` are filled by compile().
  Compiler(const Graph& graph, const CompileOptions& options, Program& program, Parameters& parameters);

  /// Appends every operation. Errors: unsupported for what the library has no implementation of;
  /// dnnl::error from the library.
  void compile();

  /// Where the caller's images {n, h, w, c} fp32 go; set it with Program::set_external before each step.
  [[nodiscard]] Buffer* images() const noexcept { return images_; }

  /// Where tensor `id` is and in which layout; empty if a fusion left it out. With keep_tensors.
  [[nodiscard]] Value tensor(TensorId id) const;
  /// Whether convolution `forward` computes by Winograd's algorithm, whose rounding errors are larger.
  [[nodiscard]] bool is_winograd(NodeId forward) const;

  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

 private:
  struct Band;
  struct ConvPlan;
  struct LinearPlan;
  struct NormPlan;
  struct PoolPlan;
  enum class ReluFusion : std::uint8_t { kNone, kPostOperation, kNorm, kAdd };

  // analyse.cpp: what is fused with what.
  void analyse();
  /// The one forward node that reads `id`, or kNoNode if there are more or none.
  [[nodiscard]] NodeId only_forward_consumer(TensorId id) const;

  // Values and layouts.
  Value& value(TensorId id);
  void set_value(TensorId id, const Value& value);
  /// The tensor in layout `wanted`: itself, or a copy by a reorder (cached).
  Value in_layout(TensorId id, const Md& wanted);
  [[nodiscard]] Md any_layout(const Shape& of, Type type) const;
  [[nodiscard]] Md channels_last(const Shape& of, Type type) const;
  /// What activations are asked to be: the library's choice in fp32, channels last in bf16.
  [[nodiscard]] Md preferred(const Shape& of) const;
  /// Whether nobody reads `buffer` after node `at`.
  [[nodiscard]] bool last_use(const Buffer* buffer, NodeId at) const;
  /// A place for output `id` of node `at`: the first of `reusable` that nobody needs afterwards, or a new one.
  Value output(TensorId id, const Md& desc, const std::vector<Value>& reusable, NodeId at);
  [[nodiscard]] std::size_t elements(const Md& desc) const;  ///< padding included, of the compute type
  void reorder(const Value& from, const Value& to, const std::string& node_name);
  [[nodiscard]] dnnl::primitive_attr attributes() const;
  Operation& describe(Operation& operation, NodeId id) const;
  Operation& primitive(NodeId id, const dnnl::primitive_desc_base& pd, const dnnl::primitive& made,
                       std::vector<Argument> arguments);
  Operation& kernel(NodeId id, std::vector<Buffer*> touches, std::function<void(StepInput&)> body);
  [[nodiscard]] const Node& node(NodeId id) const { return graph_.node(id); }
  [[nodiscard]] const Shape& shape(TensorId id) const { return graph_.tensor(id).shape; }

  // Gradients: straight into the arena where the types agree, else by way of fp32.
  Value gradient_target(TensorId gradient, const Md& desc, Type type);
  void finish_gradients(NodeId id, const std::vector<std::pair<TensorId, Value>>& written);

  void compile_node(NodeId id);
  // compile_conv.cpp
  void conv(NodeId id);
  void conv_backward_weights_node(NodeId id);
  void conv_backward_weights_as_product(NodeId id);
  void conv_backward_data_node(NodeId id);
  // compile_bands.cpp
  /// Bands of one image of convolution `id`; empty where the weight gradient of the whole is as fast.
  [[nodiscard]] std::vector<Band> weight_gradient_bands(NodeId id, const ConvPlan& plan) const;
  void conv_backward_weights_in_bands(NodeId id);
  // compile_linear.cpp
  /// What a fully connected layer reads. Channels-last images in bf16 are seen as the matrix {n, h * w * c} that
  /// they are: for that the library has its matrix-unit kernels, 1.6 to 1.9 times as fast for VGG's first layer
  /// (oneDNN 2.6, batch 8).
  Value linear_input(TensorId id);
  void linear(NodeId id);
  void linear_backward_weights_node(NodeId id);
  void linear_backward_data_node(NodeId id);
  // compile_norm.cpp
  void norm(NodeId id);
  void norm_backward_node(NodeId id);
  void running_statistics();
  // compile_pool.cpp
  void pool(NodeId id);
  void pool_backward_node(NodeId id);
  // compile_elementwise.cpp
  void relu_node(NodeId id);
  void relu_backward(NodeId id);
  /// Appends into = diff where y > 0, else 0; all in one layout, `into` may be `diff`.
  void masked_by_sign(NodeId id, const Value& y, const Value& diff, const Value& into);
  void add_node(NodeId id);
  void accumulate(NodeId id);
  /// Appends output = sum of the parts where they survive; in place of a part if it can be.
  struct SumMask {
    Buffer* bits = nullptr;  ///< of an add + relu, in layout `layout`
    Md layout;
    TensorId sign = kNoTensor;  ///< tensor whose sign decides
  };
  void sum_into(NodeId id, TensorId output, const std::vector<TensorId>& parts, const SumMask& mask);
  void concat(NodeId id);
  void concat_backward(NodeId id);
  void dropout_node(NodeId id);
  void dropout_backward(NodeId id);
  void loss(NodeId id);
  void loss_backward(NodeId id);

  const Graph& graph_;
  CompileOptions options_;
  Program& program_;
  Parameters& parameters_;
  Type type_;

  std::vector<Value> values_;                      // by TensorId
  std::vector<bool> unfinished_;                   // by TensorId: a neighbour does the rest of its work
  std::map<TensorId, std::vector<Value>> copies_;  // the same tensor in other layouts
  std::vector<std::vector<NodeId>> consumers_;     // by TensorId, real uses only
  std::vector<ReluFusion> relu_fusion_;            // by NodeId of the relu
  std::vector<bool> skipped_;                      // by NodeId: done as part of another node
  std::vector<bool> mask_at_pool_;                 // by NodeId of the relu
  std::vector<NodeId> fused_relu_;                 // by NodeId of its producer: the relu done there, or kNoNode
  std::map<const Buffer*, std::vector<TensorId>> holders_;  // tensors that live or lived in a buffer
  std::map<NodeId, std::unique_ptr<ConvPlan>> convs_;
  std::map<NodeId, std::unique_ptr<LinearPlan>> linears_;
  std::map<NodeId, std::unique_ptr<NormPlan>> norms_;
  std::map<NodeId, std::unique_ptr<PoolPlan>> pools_;
  std::map<NodeId, Buffer*> relu_masks_;  // by relu node: bit mask of an add + relu
  std::map<NodeId, Buffer*> drop_masks_;  // by dropout node
  Buffer* images_ = nullptr;
};

}  // namespace hvd::models::onednn
