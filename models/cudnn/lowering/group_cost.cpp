#include "models/cudnn/lowering/group_cost.h"

#include <algorithm>

#include "engine/base/types.h"

namespace hvd::models::cudnn {
namespace {

bool is_product(OpType type) {
  switch (type) {
    case OpType::kConv:
    case OpType::kConvBackwardData:
    case OpType::kConvBackwardWeights:
    case OpType::kLinear:
    case OpType::kLinearBackwardData:
    case OpType::kLinearBackwardWeights: return true;
    default: return false;
  }
}

double bytes_touched(const Value& value) {
  const double touched = value.storage == Storage::kState ? 2 : 1;  // running statistics are read and written
  return touched * static_cast<double>(own_elements(value)) * static_cast<double>(size_of(value.type));
}

}  // namespace

NodeCost group_cost(const Graph& graph, const Program& program, const Group& group) {
  NodeCost total;
  for (const Operation& operation : group.operations) {
    const OpType type = operation.type;
    if (is_product(type)) {
      total.flops += cost(graph, graph.node(operation.node), 1).flops;  // includes the product's bias
    } else if (type != OpType::kBias && type != OpType::kBiasGradient && type != OpType::kCopy) {
      // Operations that sum over pixels read many elements and write few.
      const auto count = [&](ValueId id) { return static_cast<double>(program.value(id).shape.count()); };
      total.flops += std::max(count(operation.inputs.front()), count(operation.outputs.front()));
    }
  }
  for (const ValueId id : reads(group)) total.bytes += bytes_touched(program.value(id));
  for (const ValueId id : group.writes) total.bytes += bytes_touched(program.value(id));
  return total;
}

}  // namespace hvd::models::cudnn
