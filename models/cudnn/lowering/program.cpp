#include "models/cudnn/lowering/program.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/assert.h"
#include "engine/base/types.h"

namespace hvd::models::cudnn {
namespace {

void add_once(std::vector<ValueId>& list, ValueId id) {
  if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

bool makes(const Group& group, ValueId id) {
  return std::any_of(group.operations.begin(), group.operations.end(), [&](const Operation& operation) {
    return std::find(operation.outputs.begin(), operation.outputs.end(), id) != operation.outputs.end();
  });
}

std::string attr_text(const Attr& attr) {
  if (const auto* w = std::get_if<Window>(&attr)) {
    return " k" + std::to_string(w->kernel_h) + "x" + std::to_string(w->kernel_w) + " s" + std::to_string(w->stride_h) +
           "x" + std::to_string(w->stride_w) + " p" + std::to_string(w->pad_top) + "," + std::to_string(w->pad_bottom) +
           "," + std::to_string(w->pad_left) + "," + std::to_string(w->pad_right);
  }
  return {};  // other attributes are arguments of the launch, not of the plan
}

std::string value_text(const Program& program, const Group& group, ValueId id, std::map<ValueId, std::size_t>& seen) {
  const auto [entry, first] = seen.emplace(id, seen.size());
  std::string text = " " + std::to_string(entry->second);
  if (!first) return text;  // shape and type are already in the text
  const Value& value = program.value(id);
  text += ":" + value.shape.text() + ":" + std::string(hvd::name(value.type));
  if (inside(group, id)) return text + ":inside";
  const Placement place = placement(program, id);
  if (place.root != id) {
    const auto bytes = static_cast<std::int64_t>(size_of(value.type));
    text += "/" + std::to_string(place.channels) + "@" +
            std::to_string(std::gcd(std::gcd(place.offset * bytes, place.channels * bytes), kWidestAlignment));
  }
  return text;
}

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

std::string_view name(OpType type) noexcept {
  switch (type) {
    case OpType::kConv: return "conv";
    case OpType::kColumns: return "columns";
    case OpType::kPartialSum: return "partial_sum";
    case OpType::kConvBackwardData: return "dgrad";
    case OpType::kConvBackwardWeights: return "wgrad";
    case OpType::kLinear: return "linear";
    case OpType::kLinearBackwardData: return "linear_dgrad";
    case OpType::kLinearBackwardWeights: return "linear_wgrad";
    case OpType::kBias: return "bias";
    case OpType::kBiasGradient: return "dbias";
    case OpType::kAdd: return "add";
    case OpType::kRelu: return "relu";
    case OpType::kReluBackward: return "drelu";
    case OpType::kStatistics: return "statistics";
    case OpType::kNormFinalize: return "norm_finalize";
    case OpType::kNormApply: return "norm_apply";
    case OpType::kNormBackwardWeights: return "dnorm_weights";
    case OpType::kNormBackwardApply: return "dnorm_apply";
    case OpType::kMaxPool: return "max_pool";
    case OpType::kMaxPoolBackward: return "dmax_pool";
    case OpType::kAvgPool: return "avg_pool";
    case OpType::kAvgPoolBackward: return "davg_pool";
    case OpType::kGlobalAvgPool: return "global_avg_pool";
    case OpType::kGlobalAvgPoolBackward: return "dglobal_avg_pool";
    case OpType::kDropout: return "dropout";
    case OpType::kDropoutBackward: return "ddropout";
    case OpType::kSoftmaxCrossEntropy: return "loss";
    case OpType::kSoftmaxCrossEntropyBackward: return "dloss";
    case OpType::kCopy: return "copy";
  }
  return "unknown";
}

std::string_view name(Provider provider) noexcept {
  switch (provider) {
    case Provider::kCudnn: return "cudnn";
    case Provider::kCublasLt: return "cublaslt";
    case Provider::kOwn: return "own";
  }
  return "unknown";
}

Placement placement(const Program& program, ValueId id) {
  Placement place{.root = id, .offset = 0, .channels = 0};
  while (program.value(place.root).parent != kNoValue) {
    place.offset += program.value(place.root).channel;
    place.root = program.value(place.root).parent;
  }
  const Shape& shape = program.value(place.root).shape;
  place.channels = shape.rank() > 0 ? shape[shape.rank() - 1] : 1;
  return place;
}

std::int64_t own_elements(const Value& value) {
  if (value.padding == 0) return value.shape.count();
  const std::int64_t channels = value.shape[value.shape.rank() - 1];
  return value.shape.count() / channels * (channels - value.padding);
}

ValueId images_of(const Graph& graph, const Program& program) {
  const auto found = std::find_if(program.values.begin(), program.values.end(),
                                  [&](const Value& value) { return value.tensor == graph.images; });
  HVD_ASSERT(found != program.values.end());
  return static_cast<ValueId>(found - program.values.begin());
}

std::vector<ValueId> reads(const Group& group) {
  std::vector<ValueId> list;
  for (const Operation& operation : group.operations) {
    for (const ValueId input : operation.inputs) {
      if (!makes(group, input)) add_once(list, input);
    }
  }
  return list;
}

bool inside(const Group& group, ValueId id) {
  return makes(group, id) && std::find(group.writes.begin(), group.writes.end(), id) == group.writes.end();
}

bool holds(const Group& group, std::initializer_list<OpType> types) {
  return std::any_of(group.operations.begin(), group.operations.end(), [&](const Operation& operation) {
    return std::find(types.begin(), types.end(), operation.type) != types.end();
  });
}

bool reads_columns(const Program& program, const Group& group) {
  const std::vector<ValueId> read = reads(group);
  const auto made = [&](const Operation& operation) {
    return operation.type == OpType::kColumns &&
           std::find(read.begin(), read.end(), operation.outputs[0]) != read.end();
  };
  return std::any_of(program.groups.begin(), program.groups.end(), [&](const Group& other) {
    return std::any_of(other.operations.begin(), other.operations.end(), made);
  });
}

std::string operations_text(const Group& group) {
  std::string text;
  for (std::size_t i = 0; i < group.operations.size(); ++i) {
    const OpType type = group.operations[i].type;
    if (i > 0 && type == OpType::kCopy && group.operations[i - 1].type == type) continue;  // copies share one launch
    text += (text.empty() ? "" : "+") + std::string(name(type));
  }
  return text;
}

std::string nodes_text(const Graph& graph, const Group& group) {
  std::vector<NodeId> nodes;
  for (const Operation& operation : group.operations) {
    if (!operation.again) add_once(nodes, operation.node);
  }
  std::string text;
  for (const NodeId node : nodes) text += (text.empty() ? "" : "+") + graph.node(node).name;
  return text;
}

std::string signature(const Program& program, const Group& group) {
  std::map<ValueId, std::size_t> seen;
  std::string text(name(group.provider));
  for (const Operation& operation : group.operations) {
    text += "; " + std::string(name(operation.type));
    for (const ValueId input : operation.inputs) text += value_text(program, group, input, seen);
    text += " >";
    for (const ValueId output : operation.outputs) text += value_text(program, group, output, seen);
    text += attr_text(operation.attr);
  }
  return text;
}

std::vector<std::size_t> gradients_ready(const Graph& graph, const Program& program) {
  std::set<TensorId> written;
  std::vector<std::size_t> ready;
  std::size_t leading = 0;
  for (const Group& group : program.groups) {
    for (const ValueId id : group.writes) {
      if (program.value(id).storage == Storage::kGradient) written.insert(program.value(id).tensor);
    }
    while (leading < graph.parameters.size() && written.contains(graph.parameters[leading].gradient)) ++leading;
    ready.push_back(leading);
  }
  return ready;
}

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
