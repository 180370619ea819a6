// The state of one analysis (analyse.h). Forward nodes first, then backward ones, each in the graph's order: a node
// either makes a draft of a group, or was already done as a part of another node's group.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/cudnn/analyse.h"

namespace hvd::models::cudnn {

/// A group that is not in the program yet, with what committing it would change.
struct Draft {
  Group group;
  NodeId at = kNoNode;                              ///< the node that it is drafted for
  std::vector<std::pair<TensorId, ValueId>> bound;  ///< tensors of the graph that it leaves in memory
  std::vector<NodeId> done;                         ///< other nodes that need no group of their own any more
  std::size_t values_before = 0;                    ///< to take its values back
};

/// The backward half of a batch norm whose sums are known: dx is one more pass.
struct NormSums {
  NodeId norm_backward = kNoNode;
  ValueId a = kNoValue, b = kNoValue, c = kNoValue;
  ValueId dy = kNoValue;  ///< after the rectifier's backward, or before it if `relu` is one
  NodeId relu = kNoNode;  ///< a rectifier's backward that the last pass does again
  int level = 0;
};

class Analyser {
 public:
  Analyser(const Graph& graph, const AnalysisOptions& options, EngineOracle& oracle);
  Program run() &&;

 private:
  struct NormVectors {
    ValueId mean = kNoValue, inv_std = kNoValue;
    ValueId sum = kNoValue, square_sum = kNoValue;
  };

  /// Gradients made in another type or place than the arena's, to be copied into it: what was made, and of which
  /// tensor.
  using Casts = std::vector<std::pair<ValueId, TensorId>>;

  // Values. (analyse.cpp)
  ValueId add_value(Value value);
  void add_arena_values();
  void plan_slices();
  [[nodiscard]] const Node& node(NodeId id) const { return graph_.node(id); }
  [[nodiscard]] const Shape& shape(TensorId id) const { return graph_.tensor(id).shape; }
  [[nodiscard]] ValueId value_of(TensorId id) const;
  [[nodiscard]] bool has_value(TensorId id) const { return value_of_.at(static_cast<std::size_t>(id)) != kNoValue; }
  [[nodiscard]] DataType storage_type() const { return storage(options_.compute); }

  // Images of few channels, and what convolutions read and make beside them. (padding.cpp)
  /// A value with channels added, and the slice of it that has the tensor's own.
  struct Padded {
    ValueId whole = kNoValue, own = kNoValue;
  };
  [[nodiscard]] bool pads_images(TensorId id) const;
  Padded add_padded(Value own);
  /// Copies the weight of `conv`, if it reads padded images, to one with as many channels.
  void pad_weight(NodeId conv);
  /// As gradient_output(), for the weight of such a convolution.
  ValueId padded_gradient(Draft& draft, TensorId id, const Shape& as, DataType made_in, Casts& casts);
  /// Of the weight of `conv`, seen as a tensor of that shape, with the last of its dimensions padded.
  ValueId padded_copy(NodeId conv, const Shape& as);
  /// Whether `conv`, which may be none, multiplies the columns of its images.
  [[nodiscard]] bool multiplies_columns(NodeId conv) const;
  [[nodiscard]] TensorId last_of_conv(NodeId conv) const;
  [[nodiscard]] Shape as_matrix(TensorId weight) const;
  void columns_conv(NodeId id);
  void columns_backward_weights(NodeId id);
  /// The value of `id` as convolutions read it.
  [[nodiscard]] ValueId operand(TensorId id) const;

  // Readers. (analyse.cpp)
  [[nodiscard]] const std::vector<NodeId>& readers(TensorId id) const {
    return readers_.at(static_cast<std::size_t>(id));
  }
  /// The one forward node that reads `id`, if it is of `kind`; else kNoNode.
  [[nodiscard]] NodeId only_forward_reader(TensorId id, OpKind kind) const;
  /// The one node that reads diff `id`, if it is of `kind`; else kNoNode.
  [[nodiscard]] NodeId only_reader(TensorId id, OpKind kind) const;
  [[nodiscard]] bool is_done(NodeId id) const { return done_.at(static_cast<std::size_t>(id)); }

  // Drafts. (analyse.cpp)
  Draft draft(Provider provider, int level, NodeId at) const;
  static void operate(Draft& draft, OpType type, std::vector<ValueId> inputs, std::vector<ValueId> outputs, NodeId node,
                      bool again = false);
  void operate_with_attr(Draft& draft, OpType type, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                         NodeId node);
  /// A value that passes through the draft's group only.
  ValueId inside_value(const std::string& name, const Shape& shape, DataType type = DataType::kF32);
  /// The value of tensor `id`, left in memory by `draft`; a slice of its concatenation if `sliced` and planned.
  ValueId output(Draft& draft, TensorId id, bool sliced = true);
  /// A value that only the program knows, left in memory by `draft`.
  ValueId extra_output(Draft& draft, const std::string& name, const Shape& shape, DataType type);
  /// Returns what a sum reads as `id`: its value, or its batch norm, which `draft` then applies.
  ValueId summand(Draft& draft, TensorId id);
  /// The batch norm of `norm`, in fp32 from its statistics.
  ValueId applied_again(Draft& draft, NodeId norm, bool again);
  /// Asks the oracle (cuDNN) or our own table. A refused draft is taken back, and recorded.
  bool offer(Draft& draft);
  [[nodiscard]] std::string refusal(const Draft& draft);
  void take_back(const Draft& draft);
  void commit(Draft& draft);
  /// A copy of `id` without gaps, for those who cannot read a slice.
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
  /// x times w, with the bias of `id` and the rectifier behind it, in one launch of cuBLASLt's.
  void fused_product(NodeId id, ValueId x, ValueId w);
  void concat(NodeId id);
  void loss(NodeId id);

  // backward.cpp
  /// What can follow a diff in the launch that makes it.
  struct Epilogue {
    bool add = false, relu = false, sums = false;
  };
  /// What becomes of diff `id`, if the launch that makes it goes on.
  struct GradientUse {
    NodeId accumulate = kNoNode;  ///< the diff is one part of its sum, and read by nobody else
    ValueId partner = kNoValue;   ///< the sum of earlier parts, to be added
    bool complete = true;         ///< no part is missing after that
    TensorId whole = kNoTensor;   ///< the complete diff
    NodeId relu_backward = kNoNode;
    NodeId norm_backward = kNoNode;  ///< whose sums could be made right away
    bool delayed = false;            ///< the rectifier is left to the batch norm below, unless it is summed for
  };
  void backward(NodeId id);
  [[nodiscard]] GradientUse use(TensorId id) const;
  [[nodiscard]] std::vector<Epilogue> epilogues(const GradientUse& use, Provider provider) const;
  /// Where the launch that makes diff `id` puts it: in memory, or on to the epilogue.
  ValueId diff_target(Draft& draft, TensorId id, const Epilogue& epilogue);
  /// Appends the epilogue to a draft that made `diff`, and leaves the result in memory. Returns that.
  ValueId finish_diff(Draft& draft, TensorId id, ValueId diff, const GradientUse& use, const Epilogue& epilogue);
  void commit_diff(Draft& draft, ValueId result, const GradientUse& use, const Epilogue& epilogue);
  /// What a rectifier's backward tests: its output, or the batch norm before it applied again.
  ValueId relu_test(Draft& draft, NodeId relu_backward, bool from_norm);
  /// The backward of a batch norm that can undo the rectifier of `relu_backward` as well, or kNoNode.
  [[nodiscard]] NodeId delays_to(NodeId relu_backward) const;
  /// The batch norm that alone feeds the rectifier of `relu_backward`, or kNoNode.
  [[nodiscard]] NodeId norm_under(NodeId relu_backward) const;
  void bind_diff(TensorId id, ValueId value);

  ValueId gradient_output(Draft& draft, TensorId id, DataType made_in, Casts& casts);
  /// Adds to those that wait; launches them when they are enough for a launch.
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
  AnalysisOptions options_;
  EngineOracle& oracle_;
  Program program_;

  std::vector<std::vector<NodeId>> readers_;  // by tensor; a node that reads it twice appears twice
  std::vector<ValueId> value_of_;             // by tensor: where it is in memory, or kNoValue
  std::vector<bool> done_;                    // by node
  struct Slice {
    ValueId parent = kNoValue;
    std::int64_t channel = 0;
  };
  std::map<TensorId, Slice> slices_;              // forward tensors that go into a concatenation
  std::map<NodeId, NormVectors> norms_;           // by forward node
  std::map<TensorId, ValueId> padded_;            // images and weights: with the channels added
  std::map<NodeId, ValueId> columns_;             // by convolution: what it reads of the images
  std::map<TensorId, NodeId> unapplied_;          // batch norms that a sum will apply, by the tensor they make
  std::map<NodeId, ValueId> where_;               // by max-pool node: index of the maximum
  std::map<NodeId, std::vector<ValueId>> parts_;  // by accumulate node: diffs that are not added up yet
  std::map<NodeId, std::size_t> parts_made_;      // by accumulate node
  std::map<NodeId, NormSums> sums_;               // by batch-norm backward node
  Casts casts_;                                   // that wait for a launch
  std::map<NodeId, NodeId> delayed_relu_;         // batch-norm backward node: the relu backward done there
};

}  // namespace hvd::models::cudnn
