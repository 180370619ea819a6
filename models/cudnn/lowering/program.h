// One training step for a GPU as plain data: values (tensors, in memory or inside one group) and groups (operations
// that run as one launch), in the order in which they run. lower() (lowering.h) makes a program from a differentiated
// graph, a Planner (plan.h) finds engines and memory for the program, and the executor runs the program. A program has
// no library objects and no addresses. A program does not change once it is made, so any thread may read it.
//
// Operations are finer than the graph's nodes, because fusion splits nodes. For example, a batch norm may become
// statistics in the epilogue of the convolution before it, a finalisation, and a pass that also adds and rectifies.
// Each operation names its node.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/types.h"
#include "models/graph/cost.h"
#include "models/graph/graph.h"

namespace hvd::models::cudnn {

using ValueId = std::int32_t;
inline constexpr ValueId kNoValue = -1;
/// In bytes. No cuDNN engine requires a larger alignment, so signatures do not distinguish larger alignments.
inline constexpr std::int64_t kWidestAlignment = 16;

/// Where a value lives.
enum class Storage : std::uint8_t {
  kImages,        ///< the batch, in the compute type
  kLabels,        ///< int32
  kParameter,     ///< parameters as operations read them: batch norm's vectors in fp32, others in the compute type
  kPaddedWeight,  ///< copies of weights with added channels; elements that no operation writes stay zero
  kState,         ///< running statistics, fp32
  kGradient,      ///< the gradient arena
  kScratch,       ///< values not alive together share this arena's bytes; values inside a group take no memory
};

struct Value {
  std::string name;
  TensorId tensor = kNoTensor;  ///< the graph's tensor; kNoTensor for a value that only the program has
  Storage storage = Storage::kScratch;
  Shape shape;  ///< logical; images and activations are {n, h, w, c}, channels fastest
  DataType type = DataType::kF32;
  /// If set, this value is a slice of the channels of `parent`, from `channel` on (concatenation without copying).
  ValueId parent = kNoValue;
  std::int64_t channel = 0;
  std::int64_t padding = 0;  ///< number of added last channels; their elements are zero when a group reads them
};
/// Number of elements without the padding.
std::int64_t own_elements(const Value& value);

enum class OpType : std::uint8_t {
  //                        inputs                                           outputs
  kConv,                   // x, w                                             y
  kColumns,                // x                                                {pixels of y, taps}: a row per window
  kPartialSum,             // parts {p, ...}                                   sum of the parts
  kConvBackwardData,       // w, dy                                            dx
  kConvBackwardWeights,    // x, dy                                            dw
  kLinear,                 // x, w                                             y
  kLinearBackwardData,     // w, dy                                            dx
  kLinearBackwardWeights,  // x, dy                                            dw, or {p, dw} for p parts of the rows
  kBias,                   // x, b {c}                                         y
  kBiasGradient,           // dy                                               db {c}
  kAdd,                    // a, b, ...                                        sum of the inputs
  kRelu,                   // x                                                y
  kReluBackward,           // x or y, dy                                       dy where input 0 is positive, else 0
  kStatistics,             // x                                                sum {c}, sum of squares {c}
  kNormFinalize,           // sum, sum of squares, gamma, beta, running        mean, inv_std, scale = gamma * inv_std,
                           // mean, running variance                           beta - mean * scale (no operation reads
                           //                                                  the last two)
  kNormApply,              // x, mean, inv_std, gamma, beta                    (x - mean) * inv_std * gamma + beta
  kNormBackwardWeights,    // x, dy, gamma, mean, inv_std                      dgamma, dbeta, and three vectors a, b, c
  kNormBackwardApply,      // x, dy, a, b, c                                   dx = a * dy + b * x + c
  kMaxPool,                // x                                                y, where (uint8: index in the window)
  kMaxPoolBackward,        // where, dy                                        dx
  kAvgPool,                // x                                                y
  kAvgPoolBackward,        // dy                                               dx
  kGlobalAvgPool,          // x                                                y {n, c}
  kGlobalAvgPoolBackward,  // dy                                               dx
  kDropout,                // x                                                y (the mask is recomputed, never stored)
  kDropoutBackward,        // dy                                               dx
  kSoftmaxCrossEntropy,    // logits, labels                                   loss {1}, probabilities {n, k}
  kSoftmaxCrossEntropyBackward,  // probabilities, labels                      dlogits
  kCopy,                         // x                                          x in another type or place
};
std::string_view name(OpType type) noexcept;

struct Operation {
  OpType type{};
  std::vector<ValueId> inputs, outputs;
  Attr attr;  ///< attributes of the graph node
  NodeId node = kNoNode;
  /// If true, another group also computes this result. Computing the result twice costs less than storing and reading
  /// it.
  bool again = false;
};

enum class Provider : std::uint8_t {
  kCudnn,     ///< an operation graph of cuDNN; the planner finds an engine for it
  kCublasLt,  ///< a matrix product with its epilogue
  kOwn,       ///< one of our own kernels (kernels/kernels.h)
};
std::string_view name(Provider provider) noexcept;

struct Group {
  Provider provider = Provider::kOwn;
  int level = 0;  ///< fusion level (lowering.h) that makes this group; 0: a single operation
  std::vector<Operation> operations;
  /// Values that the group leaves in memory: those that another group reads and those that live in an arena. All other
  /// results of the group's operations stay inside the group.
  std::vector<ValueId> writes;
};

/// A fusion that was tried and refused: at which node, and why.
struct Fallback {
  NodeId node = kNoNode;
  int level = 0;
  std::string wanted;  ///< operations joined by '+'
  std::string why;
};

struct Program {
  std::string model;
  std::vector<Value> values;
  std::vector<Group> groups;
  std::vector<NodeId> elided;  ///< nodes that need no launch: concatenations of slices
  std::vector<Fallback> fallbacks;

  [[nodiscard]] const Value& value(ValueId id) const { return values.at(static_cast<std::size_t>(id)); }
};

/// The position of a slice inside the outermost value from which the slice is cut.
struct Placement {
  ValueId root = kNoValue;    ///< the outermost value; the value itself if it is not a slice
  std::int64_t offset = 0;    ///< elements from the start of `root`
  std::int64_t channels = 0;  ///< channels of `root`: elements from one pixel to the next
};
Placement placement(const Program& program, ValueId id);

/// Returns the value to which a batch's images are written. If the images are padded, this value is a slice with the
/// images' own channels, and there are gaps between its pixels.
ValueId images_of(const Graph& graph, const Program& program);

/// Returns the values that `group` reads from memory: inputs that the group itself does not make, each listed once, in
/// order of appearance.
std::vector<ValueId> reads(const Group& group);
/// Returns true if `group` makes `id` and does not leave it in memory.
bool inside(const Group& group, ValueId id);

bool holds(const Group& group, std::initializer_list<OpType> types);
/// Returns true if `group` reads the output of a kColumns operation.
bool reads_columns(const Program& program, const Group& group);

/// Returns the group's operations as text, for example "norm_apply+add+relu". Consecutive copies appear once.
std::string operations_text(const Group& group);
/// Returns the names of the nodes whose operations are in `group`, joined by '+'. Operations with `again` set do not
/// count.
std::string nodes_text(const Graph& graph, const Group& group);

/// Returns a text that is equal for groups that do the same work: operations, attributes, shapes, types, strides and
/// alignment, but no names. Caches of engines use the text as their key. A network has far fewer signatures than
/// groups.
/// Example: "cudnn; conv 0:128x28x28x128:fp16 1:128x3x3x128:fp16 > 2:128x28x28x128:fp16/256@16 k3x3 s1x1 p1,1,1,1".
std::string signature(const Program& program, const Group& group);

/// Returns, by group, how many leading parameters (graph.parameters, in the arena's order) have their final gradients
/// once the group has run. The numbers never decrease. The last number is that of all parameters.
std::vector<std::size_t> gradients_ready(const Graph& graph, const Program& program);

/// Returns the minimum work of one launch, in FLOPs and bytes. Measured times are compared with this bound. Pure.
/// FLOPs: for products with their bias, as in models/graph/cost.h; for copies, 0; for every other operation, one FLOP
/// per element of its first input or first output, whichever has more elements. Bytes: each value that the group reads
/// or leaves in memory counts once. Values inside the group cost nothing.
NodeCost group_cost(const Graph& graph, const Program& program, const Group& group);

}  // namespace hvd::models::cudnn
