// The state of one call of lower() (lowering.h). The builder visits the forward nodes in the graph's order, then the
// backward nodes. A node that is not yet part of an earlier node's group drafts a group of its own.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/cudnn/lowering/lowering.h"

namespace hvd::models::cudnn {

/// A group that is not in the program yet, and the changes that commit() makes when it adds the group.
struct Draft {
  Group group;
  NodeId at = kNoNode;                              ///< the node that the group is drafted for
  std::vector<std::pair<TensorId, ValueId>> bound;  ///< tensors that the group leaves in memory, each with its value
  std::vector<NodeId> done;                         ///< nodes that the group computes besides `at`
  std::size_t values_before = 0;  ///< number of values before the draft; take_back() removes later values
};

/// The state between the two passes of a batch norm's backward. The first pass made the sums a, b and c. The second
/// pass computes dx from these sums.
struct NormSums {
  NodeId norm_backward = kNoNode;
  ValueId a = kNoValue, b = kNoValue, c = kNoValue;
  ValueId dy = kNoValue;  ///< already masked by the rectifier's backward, unless `relu` is set
  NodeId relu = kNoNode;  ///< the rectifier's backward that the second pass repeats, or kNoNode
  int level = 0;
};

class ProgramBuilder {
 public:
  ProgramBuilder(const Graph& graph, const LoweringOptions& options, EngineOracle& oracle);
  Program run() &&;

 private:
  struct NormVectors {
    ValueId mean = kNoValue, inv_std = kNoValue;
    ValueId sum = kNoValue, square_sum = kNoValue;
  };

  /// Gradients that must be copied into the gradient arena, because a launch makes them in another type or place. Each
  /// pair is the value that the launch makes and the gradient tensor.
  using Casts = std::vector<std::pair<ValueId, TensorId>>;

  // Values. (lowering.cpp)
  ValueId add_value(Value value);
  void add_arena_values();
  void plan_slices();
  [[nodiscard]] const Node& node(NodeId id) const { return graph_.node(id); }
  [[nodiscard]] const Shape& shape(TensorId id) const { return graph_.tensor(id).shape; }
  [[nodiscard]] ValueId value_of(TensorId id) const;
  [[nodiscard]] bool has_value(TensorId id) const { return value_of_.at(static_cast<std::size_t>(id)) != kNoValue; }
  [[nodiscard]] DataType storage_type() const { return storage(options_.compute); }

  // Padding of images and weights to more channels, and images as columns. (padding.cpp)
  /// `whole` includes the added channels. `own` is the slice of `whole` with the tensor's own channels.
  struct Padded {
    ValueId whole = kNoValue, own = kNoValue;
  };
  [[nodiscard]] bool pads_images(TensorId id) const;
  Padded add_padded(Value own);
  /// If `conv` reads padded images, copies its weight into a value with as many channels as the padded images.
  void pad_weight(NodeId conv);
  /// Does the work of gradient_output() for the weight of a convolution that reads padded images.
  ValueId padded_gradient(Draft& draft, TensorId id, const Shape& as, DataType made_in, Casts& casts);
  /// Copies the weight of `conv`, seen as a tensor of shape `as`, and pads the last dimension of the copy.
  ValueId padded_copy(NodeId conv, const Shape& as);
  /// Returns true if `conv` runs as a product of its weight and the columns of its images (ImageLayout::kColumns).
  /// `conv` may be kNoNode.
  [[nodiscard]] bool multiplies_columns(NodeId conv) const;
  [[nodiscard]] TensorId last_of_conv(NodeId conv) const;
  [[nodiscard]] Shape as_matrix(TensorId weight) const;
  void columns_conv(NodeId id);
  void columns_backward_weights(NodeId id);
  /// Returns the value that convolutions read for `id`: the padded value if there is one, else value_of().
  [[nodiscard]] ValueId operand(TensorId id) const;

  // Readers. (lowering.cpp)
  [[nodiscard]] const std::vector<NodeId>& readers(TensorId id) const {
    return readers_.at(static_cast<std::size_t>(id));
  }
  /// If exactly one forward node reads `id` and this node is of `kind`, returns the node; else kNoNode.
  [[nodiscard]] NodeId only_forward_reader(TensorId id, OpKind kind) const;
  /// If exactly one node reads diff `id` and this node is of `kind`, returns the node; else kNoNode.
  [[nodiscard]] NodeId only_reader(TensorId id, OpKind kind) const;
  [[nodiscard]] bool is_done(NodeId id) const { return done_.at(static_cast<std::size_t>(id)); }

  // Drafts. (lowering.cpp)
  Draft draft(Provider provider, int level, NodeId at) const;
  static void operate(Draft& draft, OpType type, std::vector<ValueId> inputs, std::vector<ValueId> outputs, NodeId node,
                      bool again = false);
  void operate_with_attr(Draft& draft, OpType type, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                         NodeId node);
  /// Adds a value that exists only inside the draft's group.
  ValueId inside_value(const std::string& name, const Shape& shape, DataType type = DataType::kF32);
  /// Adds the value of tensor `id`, which `draft` leaves in memory. If `sliced` is set and slices_ has a slice for the
  /// tensor, the value is that slice.
  ValueId output(Draft& draft, TensorId id, bool sliced = true);
  /// Adds a value that `draft` leaves in memory and that is not a tensor of the graph.
  ValueId extra_output(Draft& draft, const std::string& name, const Shape& shape, DataType type);
  /// Returns the value that a sum reads for `id`. If `id` is the output of a batch norm that no launch
  /// has applied yet (unapplied_), applies the norm in `draft`.
  ValueId summand(Draft& draft, TensorId id);
  /// Applies batch norm `norm` in `draft`, in fp32, from the norm's statistics. `again`: see Operation::again.
  ValueId applied_again(Draft& draft, NodeId norm, bool again);
  /// Asks the oracle (cuDNN) or own_kernel() if the draft's group can run. If it can, commits the draft and returns
  /// true. Otherwise records the refusal and takes the draft back.
  bool offer(Draft& draft);
  [[nodiscard]] std::string refusal(const Draft& draft);
  void take_back(const Draft& draft);
  void commit(Draft& draft);
  /// Returns a copy of `id` without gaps, for engines that cannot read a slice. Returns `id` if it is not a slice.
  ValueId packed(ValueId id, NodeId at);
  void record(const Draft& draft, std::string why);

  // forward.cpp
  struct ConvForm {
    bool bias = false, relu = false, statistics = false;
  };
  void forward(NodeId id);
  void conv(NodeId id);
  [[nodiscard]] std::vector<ConvForm> conv_forms(NodeId id) const;
  Draft conv_draft(NodeId id, const ConvForm& form, bool sliced);
  [[noreturn]] void refuse_convolution(NodeId id, const char* what) const;
  void own_bias(NodeId id, ValueId x);
  void norm(NodeId id);
  void statistics(NodeId id);
  void finalize(NodeId id, int level);
  void apply_now(NodeId id);
  void add(NodeId id);
  void pointwise(NodeId id, OpType type);
  void pool(NodeId id, OpType type);
  void linear(NodeId id);
  /// Multiplies x by w, adds the bias of `id` and applies the rectifier after `id`, if any, in one launch of cuBLASLt.
  void fused_product(NodeId id, ValueId x, ValueId w);
  void concat(NodeId id);
  void loss(NodeId id);

  // backward.cpp
  /// The operations that follow a diff in the launch that makes the diff.
  struct Epilogue {
    bool add = false, relu = false, sums = false;
  };
  /// The graph's operations that follow a diff, and that the launch which makes the diff may include.
  struct GradientUse {
    NodeId accumulate = kNoNode;  ///< the sum that the diff is a part of, if nothing else reads the diff
    ValueId partner = kNoValue;   ///< a part of `accumulate` that is already made; the launch may add it
    bool complete = true;         ///< the diff and `partner` complete the sum, or there is no sum
    TensorId whole = kNoTensor;   ///< the sum's tensor, or the diff if there is no sum; kNoTensor if not `complete`
    NodeId relu_backward = kNoNode;
    NodeId norm_backward = kNoNode;  ///< the batch norm backward whose sums the launch may compute
    bool delayed = false;            ///< a norm's backward computes relu_backward, unless the launch makes the sums
  };
  void backward(NodeId id);
  [[nodiscard]] GradientUse use(TensorId id) const;
  [[nodiscard]] std::vector<Epilogue> epilogues(const GradientUse& use, Provider provider) const;
  /// Returns the value that the launch for diff `id` writes. The value lies inside the draft's group if `epilogue`
  /// reads the diff, otherwise in memory.
  ValueId diff_target(Draft& draft, TensorId id, const Epilogue& epilogue);
  /// Appends the epilogue to a draft that made `diff`. Returns the result, which the draft leaves in memory.
  ValueId finish_diff(Draft& draft, TensorId id, ValueId diff, const GradientUse& use, const Epilogue& epilogue);
  void commit_diff(Draft& draft, ValueId result, const GradientUse& use, const Epilogue& epilogue);
  /// Returns the value whose sign a rectifier's backward tests: the rectifier's output or, if `from_norm`, the
  /// rectifier's input, which `draft` computes again.
  ValueId relu_test(Draft& draft, NodeId relu_backward, bool from_norm);
  /// Returns the backward of a batch norm that can also compute `relu_backward`, or kNoNode.
  [[nodiscard]] NodeId delays_to(NodeId relu_backward) const;
  /// Returns the batch norm that only the rectifier of `relu_backward` reads, or kNoNode.
  [[nodiscard]] NodeId norm_under(NodeId relu_backward) const;
  void bind_diff(TensorId id, ValueId value);

  ValueId gradient_output(Draft& draft, TensorId id, DataType made_in, Casts& casts);
  /// Adds `casts` to the waiting casts. Launches all waiting casts when there are enough of them.
  void cast_gradients(const Casts& casts);
  void launch_casts();
  NormSums sums_into(Draft& draft, NodeId norm_backward, ValueId dy, Casts& casts);
  void own_norm_backward(NodeId id, NodeId relu);
  void apply_norm_backward(NodeId id);
  void own_relu_backward(NodeId id);
  void conv_backward_weights(NodeId id);
  void conv_backward_data(NodeId id);
  void linear_backward_weights(NodeId id);
  void linear_backward_data(NodeId id);
  void bias_gradient(NodeId id);
  void norm_backward(NodeId id);
  void relu_backward(NodeId id);
  void pool_backward(NodeId id, OpType type);
  void concat_backward(NodeId id);
  void accumulate(NodeId id);
  void loss_backward(NodeId id);

  const Graph& graph_;
  LoweringOptions options_;
  EngineOracle& oracle_;
  Program program_;

  std::vector<std::vector<NodeId>> readers_;  // by tensor: nodes that read it; a node that reads it twice appears twice
  std::vector<ValueId> value_of_;             // by tensor: the tensor's value, or kNoValue
  std::vector<bool> done_;                    // by node: true once a group computes the node
  struct Slice {
    ValueId parent = kNoValue;
    std::int64_t channel = 0;
  };
  std::map<TensorId, Slice> slices_;              // by forward tensor: its slice of a concatenation
  std::map<NodeId, NormVectors> norms_;           // by forward node: the values of its vectors
  std::map<TensorId, ValueId> padded_;            // by tensor (images or weight): value with added channels
  std::map<NodeId, ValueId> columns_;             // by convolution: the columns of its images
  std::map<TensorId, NodeId> unapplied_;          // by output tensor: the batch norm, which a sum will apply
  std::map<NodeId, ValueId> where_;               // by max-pool node: indices of the maxima
  std::map<NodeId, std::vector<ValueId>> parts_;  // by accumulate node: diffs that are not added up yet
  std::map<NodeId, std::size_t> parts_made_;      // by accumulate node: number of parts made so far
  std::map<NodeId, NormSums> sums_;               // by batch-norm backward node: state after its first pass
  Casts casts_;                                   // casts that wait for a launch
  std::map<NodeId, NodeId> delayed_relu_;         // by batch-norm backward node: the relu backward that it computes
};

}  // namespace hvd::models::cudnn
