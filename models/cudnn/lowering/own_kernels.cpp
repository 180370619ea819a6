// Says which groups our own kernels (kernels/) can run: a small grammar over the operations. One launch runs a whole
// group that own_kernel() accepts.
#include <algorithm>
#include <span>

#include "models/cudnn/lowering/lowering.h"

namespace hvd::models::cudnn {
namespace {

using Operations = std::span<const Operation>;

bool starts_with(Operations operations, OpType type) { return !operations.empty() && operations[0].type == type; }

/// Returns `operations` without a rectifier's backward at the start, and without the batch norm in front of the
/// rectifier's backward, whose output the rectifier's backward tests.
Operations after_rectifier(Operations operations) {
  if (starts_with(operations, OpType::kNormApply)) operations = operations.subspan(1);
  if (starts_with(operations, OpType::kReluBackward)) operations = operations.subspan(1);
  return operations;
}

/// True for operations that work element by element. Their inputs are up to four tensors of the output's shape, and
/// vectors of channels.
bool is_pointwise(OpType type) {
  switch (type) {
    case OpType::kBias:
    case OpType::kNormApply:
    case OpType::kAdd:
    case OpType::kRelu:
    case OpType::kReluBackward:
    case OpType::kDropout:
    case OpType::kDropoutBackward: return true;
    default: return false;
  }
}

/// True if `operations` may follow a diff in the loop that computes the diff: at most the sum with earlier diffs, then
/// a rectifier's backward, which may test a batch norm that the group computes again.
bool is_epilogue(Operations operations) {
  if (starts_with(operations, OpType::kAdd)) operations = operations.subspan(1);
  operations = after_rectifier(operations);
  return operations.empty();
}

std::string joined(Operations operations) {
  std::string text;
  for (const Operation& operation : operations) text += (text.empty() ? "" : "_") + std::string(name(operation.type));
  return text;
}

bool is_known(Operations operations) {
  if (operations.empty()) return false;
  switch (operations[0].type) {
    case OpType::kStatistics: {
      const Operations rest = operations.subspan(1);
      return rest.empty() || (rest.size() == 1 && starts_with(rest, OpType::kNormFinalize));
    }
    case OpType::kNormFinalize:
    case OpType::kColumns:
    case OpType::kPartialSum:
    case OpType::kMaxPool:
    case OpType::kAvgPool:
    case OpType::kGlobalAvgPool:
    case OpType::kBiasGradient:
    case OpType::kSoftmaxCrossEntropy:
    case OpType::kSoftmaxCrossEntropyBackward: return operations.size() == 1;
    case OpType::kMaxPoolBackward:
    case OpType::kAvgPoolBackward:
    case OpType::kGlobalAvgPoolBackward: return is_epilogue(operations.subspan(1));
    case OpType::kCopy:
      return std::all_of(operations.begin(), operations.end(),
                         [](const Operation& operation) { return operation.type == OpType::kCopy; });
    default: break;
  }
  // The backward of a rectifier before a max pool runs on the pooled diff, which is several times smaller than dx.
  if (operations[0].type == OpType::kReluBackward && operations.size() > 1 &&
      operations[1].type == OpType::kMaxPoolBackward) {
    return is_epilogue(operations.subspan(2));
  }
  // Accepts the two passes of a batch norm's backward, each with the backward of the rectifier after the norm, if any.
  if (const OpType last = operations.back().type;
      last == OpType::kNormBackwardWeights || last == OpType::kNormBackwardApply) {
    return after_rectifier(operations.first(operations.size() - 1)).empty();
  }
  return std::all_of(operations.begin(), operations.end(),
                     [](const Operation& operation) { return is_pointwise(operation.type); });
}

}  // namespace

std::string own_kernel(const Group& group) {
  if (!is_known(group.operations)) return {};
  if (group.operations[0].type == OpType::kCopy) return "copy";  // one name for any number of copies
  return joined(group.operations);
}

}  // namespace hvd::models::cudnn
