// Compiles a differentiated graph into a PrimitiveProgram (primitive_program.h): chooses primitives, layouts and
// fusions once, at construction. The compiler is not needed when the program runs.
//
// Fusions, which decide_fusions() derives from the graph alone:
//   conv + bias + relu          one primitive (post-operation); backward keeps the diff where the output is positive
//   batch norm + relu           one primitive; its workspace has the ReLU's mask, and its backward pass does the
//                               backward pass of the ReLU
//   add + relu                  one kernel, which writes a bit mask for backward
//   relu before a max pool      backward masks the diff of the pool's output, which is several times smaller than the
//                               ReLU's output
//   accumulate + relu backward  one kernel
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/onednn/parameters.h"
#include "models/onednn/primitive_program.h"

namespace hvd::models::onednn {

struct CompileOptions {
  DataType compute = DataType::kF32;
  std::uint64_t seed = 1;  ///< seed of the dropout masks
  bool winograd = true;    ///< StepOptions::winograd
  /// If true, every tensor keeps its own memory to the end of the step, so that a test can read the tensor.
  bool keep_tensors = false;
};

class Compiler {
 public:
  /// `graph`, `program` and `parameters` must outlive the compiler. compile() fills `program` and `parameters`.
  Compiler(const Graph& graph, const CompileOptions& options, PrimitiveProgram& program, Parameters& parameters);

  /// Appends all operations of the graph to the program. Errors: unsupported for an operation that the library does not
  /// implement; dnnl::error from the library.
  void compile();

  /// The buffer of the caller's images {n, h, w, c} in fp32. Set its address in each step by
  /// PrimitiveProgram::set_external().
  [[nodiscard]] Buffer* images() const noexcept { return images_; }

  /// Returns the place and layout of tensor `id`; empty if, after fusion, no operation computes the tensor. Needs
  /// CompileOptions::keep_tensors.
  [[nodiscard]] TensorView tensor(TensorId id) const;
  /// Returns true if convolution `forward` uses Winograd's algorithm, which rounds worse than a direct convolution, so
  /// that the tests allow it a larger error.
  [[nodiscard]] bool is_winograd(NodeId forward) const;

  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

 private:
  struct Band;
  struct ConvLayouts {
    Md src, weights, dst;
  };
  struct ConvPlan;
  struct LinearLayouts {
    Md src, weights;
  };
  struct LinearPlan;
  struct NormPlan;
  struct PoolPlan;
  enum class ReluFusion : std::uint8_t { kNone, kPostOperation, kNorm, kAdd };

  // decide_fusions.cpp
  void decide_fusions();
  /// Returns the only forward node that reads `id`; kNoNode if several nodes or none read it.
  [[nodiscard]] NodeId only_forward_consumer(TensorId id) const;

  // Values and layouts.
  TensorView& value(TensorId id);
  void set_value(TensorId id, const TensorView& value);
  /// Returns the tensor in layout `wanted`: the tensor itself, or a copy that a reorder makes. Copies are reused.
  TensorView in_layout(TensorId id, const Md& wanted);
  [[nodiscard]] Md any_layout(const Shape& shape, Type type) const;
  [[nodiscard]] Md channels_first(const Shape& shape, Type type) const;
  [[nodiscard]] Md channels_last(const Shape& shape, Type type) const;
  /// Returns the layout to request for an activation: the library's choice in fp32, channels last in bf16.
  [[nodiscard]] Md preferred(const Shape& shape) const;
  /// Returns true if no operation reads `buffer` after node `at`.
  [[nodiscard]] bool last_use(const Buffer* buffer, NodeId at) const;
  /// Returns a place for output `id` of node `at`: the first of `reusable` that is not read later, or a new buffer.
  TensorView output(TensorId id, const Md& desc, const std::vector<TensorView>& reusable, NodeId at);
  [[nodiscard]] std::size_t elements(const Md& desc) const;  ///< number of elements of the compute type, with padding
  BoundOperation& describe(BoundOperation& operation, NodeId id) const;
  BoundOperation& primitive(NodeId id, const dnnl::primitive_desc_base& pd, const dnnl::primitive& made,
                            std::vector<Argument> arguments);
  BoundOperation& kernel(NodeId id, std::vector<Buffer*> touches, std::function<void(StepInput&)> body);
  [[nodiscard]] const Node& node(NodeId id) const { return graph_.node(id); }
  [[nodiscard]] const Shape& shape(TensorId id) const { return graph_.tensor(id).shape; }

  // Operations write gradients of the arena's type to the arena, and others to fp32 memory, from which a kernel
  // converts them.
  TensorView gradient_target(TensorId gradient, const Md& desc, Type type);
  void finish_gradients(NodeId id, const std::vector<std::pair<TensorId, TensorView>>& written);

  void compile_node(NodeId id);
  // compile_conv.cpp
  /// Returns the layouts to request for a convolution {x, weights, y}, in the order of preference: the layouts of the
  /// network, the library's choice, and the two plain layouts (first_compiled()).
  [[nodiscard]] std::vector<ConvLayouts> conv_layouts(const Shape& x, const Shape& y, const Shape& w) const;
  void conv(NodeId id);
  void conv_backward_weights_node(NodeId id);
  void conv_backward_weights_as_product(NodeId id);
  void conv_backward_data_node(NodeId id);
  // compile_bands.cpp
  /// Returns the bands of one image of convolution `id`; empty if the weight gradient of the whole image is as fast.
  [[nodiscard]] std::vector<Band> weight_gradient_bands(NodeId id, const ConvPlan& plan) const;
  void conv_backward_weights_in_bands(NodeId id);
  // compile_linear.cpp
  /// Returns the input of a fully connected layer. Channels-last images in bf16 are treated as a matrix {n, h * w * c},
  /// because the library's fully connected layer uses the matrix unit only for matrices. VGG's first layer is 1.6 to
  /// 1.9 times as fast with a matrix as with images (oneDNN 2.6, batch 8).
  TensorView linear_input(TensorId id);
  /// Returns the layouts to request for a fully connected layer, in the order of preference: the library's choice of
  /// the weights over `src`, then plain ones.
  [[nodiscard]] std::vector<LinearLayouts> linear_layouts(const Md& src, const Dims& weights) const;
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
  /// Appends an operation that sets into = diff where y > 0, else 0. All layouts are equal; `into` may be `diff`.
  void masked_by_sign(NodeId id, const TensorView& y, const TensorView& diff, const TensorView& into);
  void add_node(NodeId id);
  void accumulate(NodeId id);
  /// The elements that sum_into() keeps. sum_into() appends an operation: output = sum of the parts where `mask` keeps
  /// the element, else 0. The sum may overwrite a part.
  struct SumMask {
    Buffer* bits = nullptr;  ///< bit mask of an add + relu, in layout `layout`; null: use `sign`
    Md layout;
    TensorId sign = kNoTensor;  ///< if `bits` is null: elements are kept where this tensor is positive
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
  PrimitiveProgram& program_;
  Parameters& parameters_;
  Type type_;

  std::vector<TensorView> values_;                      // [TensorId]: place and layout of the tensor
  std::vector<bool> unfinished_;                        // [TensorId]: a fused operation elsewhere completes the tensor
  std::map<TensorId, std::vector<TensorView>> copies_;  // copies of a tensor in other layouts than values_ has
  std::vector<std::vector<NodeId>> consumers_;          // [TensorId]: nodes whose compiled operations read the tensor
  std::vector<ReluFusion> relu_fusion_;                 // [NodeId of the relu]: how the relu is fused
  std::vector<bool> skipped_;                           // [NodeId]: the operation of another node does the work
  std::vector<bool> mask_at_pool_;                      // [NodeId of the relu]: a pool's backward masks for the relu
  std::vector<NodeId> fused_relu_;                      // [NodeId of the producer]: the relu fused into it, or kNoNode
  std::map<const Buffer*, std::vector<TensorId>> holders_;  // tensors that are, or have been, in the buffer
  std::map<NodeId, std::unique_ptr<ConvPlan>> convs_;
  std::map<NodeId, std::unique_ptr<LinearPlan>> linears_;
  std::map<NodeId, std::unique_ptr<NormPlan>> norms_;
  std::map<NodeId, std::unique_ptr<PoolPlan>> pools_;
  std::map<NodeId, Buffer*> relu_masks_;  // [relu node]: bit mask of an add + relu
  std::map<NodeId, Buffer*> drop_masks_;  // [dropout node]: mask of the kept elements
  Buffer* images_ = nullptr;
};

}  // namespace hvd::models::onednn
