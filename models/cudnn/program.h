// One training step for a GPU as plain data: values (tensors in memory, or passing through a group only) and groups
// (operations that run as one launch), in the order in which they run. Made by analyse() (analyse.h) from a
// differentiated graph; planned by plan() (plan.h); executed by whoever has a device. It knows no library and no
// address. Immutable once made; any thread may read it.
//
// Operations are finer than the graph's nodes, because fusion cuts nodes in pieces: a batch norm may be statistics
// in the epilogue of the convolution before it, a finalisation, and a pass that also adds and rectifies. Each operation
// names the node that it belongs to.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/types.h"
#include "models/graph/graph.h"

namespace hvd::models::cudnn {

using ValueId = std::int32_t;
inline constexpr ValueId kNoValue = -1;
/// Bytes: cuDNN engines ask for up to this alignment; arenas and rows give more.
inline constexpr std::int64_t kWidestAlignment = 16;

/// Where a value lives.
enum class Storage : std::uint8_t {
  kImages,        ///< the batch, in the compute type
  kLabels,        ///< int32
  kParameter,     ///< what the operations read: weights and biases in the compute type, batch norm's vectors in fp32
  kPaddedWeight,  ///< copies of weights with channels added; what no operation writes is zero for ever
  kState,         ///< running statistics, fp32
  kGradient,      ///< the gradient arena
  kScratch,       ///< the arena that is reused by liveness; nothing at all for values that stay inside a group
};

struct Value {
  std::string name;
  TensorId tensor = kNoTensor;  ///< of the graph; kNoTensor for what only the plan knows
  Storage storage = Storage::kScratch;
  Shape shape;  ///< logical; images and activations are {n, h, w, c}, channels fastest
  DataType type = DataType::kF32;
  /// A slice of the channels of another value (concatenation without copying), from channel `channel` on.
  ValueId parent = kNoValue;
  std::int64_t channel = 0;
  std::int64_t padding = 0;  ///< of its channels, the last: none of the network's; zero where a group reads them
};
/// Of the network: less the padding.
std::int64_t own_elements(const Value& value);

enum class OpType : std::uint8_t {
  //                        inputs                                           outputs
  kConv,                   // x, w                                             y
  kColumns,                // x                                                {pixels of y, taps}: a row per window
  kPartialSum,             // parts {p, ...}                                   their sum
  kConvBackwardData,       // w, dy                                            dx
  kConvBackwardWeights,    // x, dy                                            dw
  kLinear,                 // x, w                                             y
  kLinearBackwardData,     // w, dy                                          dx
  kLinearBackwardWeights,  // x, dy                                          dw, or {p, dw} of p parts of the rows
  kBias,                   // x, b {c}                                         y
  kBiasGradient,           // dy                                               db {c}
  kAdd,                    // a, b, ...                                        their sum
  kRelu,                   // x                                                y
  kReluBackward,           // x or y, dy                                       dy where the first is positive, else 0
  kStatistics,             // x                                                sum {c}, sum of squares {c}
  kNormFinalize,           // sum, sum of squares, gamma, beta, r. mean, var   mean, inv_std; no operation reads
                           //                                                  gamma * inv_std, beta - mean * that
  kNormApply,              // x, mean, inv_std, gamma, beta                    (x - mean) * inv_std * gamma + beta
  kNormBackwardWeights,    // x, dy, gamma, mean, inv_std                      dgamma, dbeta, and three vectors a, b, c
  kNormBackwardApply,      // x, dy, a, b, c                                   dx = a * dy + b * x + c
  kMaxPool,                // x                                                y, where (uint8: index in the window)
  kMaxPoolBackward,        // where, dy                                        dx
  kAvgPool,                // x                                                y
  kAvgPoolBackward,        // dy                                               dx
  kGlobalAvgPool,          // x                                              y {n, c}
  kGlobalAvgPoolBackward,  // dy                                             dx
  kDropout,              // x                                                y   (its mask is recomputed, never stored)
  kDropoutBackward,      // dy                                               dx
  kSoftmaxCrossEntropy,  // logits, labels                                   loss {1}, probabilities {n, k}
  kSoftmaxCrossEntropyBackward,  // probabilities, labels                    dlogits
  kCopy,                         // x                                                x in another type or place
};
std::string_view name(OpType type) noexcept;

struct Operation {
  OpType type{};
  std::vector<ValueId> inputs, outputs;
  Attr attr;  ///< of the graph node
  NodeId node = kNoNode;
  /// Computed elsewhere as well, and here again because that is cheaper than storing and reading it.
  bool again = false;
};

enum class Provider : std::uint8_t {
  kCudnn,     ///< an operation graph of cuDNN; the planner finds an engine for it
  kCublasLt,  ///< a matrix product with its epilogue
  kOwn,       ///< a kernel of ours
};
std::string_view name(Provider provider) noexcept;

struct Group {
  Provider provider = Provider::kOwn;
  int level = 0;  ///< fusion level that it belongs to: 0 one operation, 1 fused, 2 the batch-norm-fused path
  std::vector<Operation> operations;
  /// What it leaves in memory: everything that another group reads or that lives in an arena. What else its
  /// operations make passes through the group only.
  std::vector<ValueId> writes;
};

/// A node whose work needs no launch, and why.
struct Elided {
  NodeId node = kNoNode;
  std::string why;
};

/// What was wished for and not to be had: the fusion, at which node, and the reason that the library gave.
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
  std::vector<Elided> elided;
  std::vector<Fallback> fallbacks;

  [[nodiscard]] const Value& value(ValueId id) const { return values.at(static_cast<std::size_t>(id)); }
};

/// Where a value lies in memory, in elements from the start of the outermost value that it is a slice of.
struct Placement {
  ValueId root = kNoValue;
  std::int64_t offset = 0;
  std::int64_t channels = 0;  ///< of the root: elements from one pixel to the next
};
Placement placement(const Program& program, ValueId id);

/// What the batch is written to: as many channels as the graph's images have, with gaps between them if it is a slice.
ValueId images_of(const Graph& graph, const Program& program);

/// What `group` reads from memory: the inputs that it does not make itself, each once, in order of appearance.
std::vector<ValueId> reads(const Group& group);
/// Whether `id` passes through `group` only: made there and not left in memory.
bool inside(const Group& group, ValueId id);

/// Whether it has an operation of one of `types`.
bool holds(const Group& group, std::initializer_list<OpType> types);
/// Whether an operation of `group` reads what a kColumns of the program makes.
bool reads_columns(const Program& program, const Group& group);

/// "norm_apply+add+relu". Copies in a row count as one.
std::string operations_text(const Group& group);
/// The nodes whose operations are in it, joined by '+'.
std::string nodes_text(const Graph& graph, const Group& group);

/// Equal for groups that do the same work: operations, attributes, shapes, types, strides and alignment, but no
/// names. What a cache of plans is keyed by, and what makes a network's groups few. Readable:
/// "conv 128x28x28x128:fp16 128x3x3x128:fp16 > 128x28x28x128:fp16/256 k3x3 s1x1 p1,1,1,1".
std::string signature(const Program& program, const Group& group);

/// By group: how many leading parameters (graph.parameters, the order of the arena) have their final gradients once it
/// has run. Non-decreasing; all of them after the last.
std::vector<std::size_t> gradients_ready(const Graph& graph, const Program& program);

}  // namespace hvd::models::cudnn
