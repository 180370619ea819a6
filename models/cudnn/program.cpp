#include "models/cudnn/program.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/base/assert.h"

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
  return {};  // the others are arguments of the launch, not of the plan
}

std::string value_text(const Program& program, const Group& group, ValueId id, std::map<ValueId, std::size_t>& seen) {
  const auto [entry, first] = seen.emplace(id, seen.size());
  std::string text = " " + std::to_string(entry->second);
  if (!first) return text;  // described where it appeared
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
    case OpType::kScaleShift: return "scale_shift";
    case OpType::kAdd: return "add";
    case OpType::kRelu: return "relu";
    case OpType::kReluBackward: return "drelu";
    case OpType::kStatistics: return "statistics";
    case OpType::kNormFinalize: return "norm_finalize";
    case OpType::kNorm: return "norm";
    case OpType::kNormApply: return "norm_apply";
    case OpType::kNormBackward: return "dnorm";
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

std::string_view name(Engine engine) noexcept {
  switch (engine) {
    case Engine::kCudnn: return "cudnn";
    case Engine::kCublasLt: return "cublaslt";
    case Engine::kOwn: return "own";
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
    if (i > 0 && type == OpType::kCopy && group.operations[i - 1].type == type) continue;  // any number is one launch
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
  std::string text(name(group.engine));
  for (const Operation& operation : group.operations) {
    text += "; " + std::string(name(operation.type));
    for (const ValueId input : operation.inputs) text += value_text(program, group, input, seen);
    text += " >";
    for (const ValueId output : operation.outputs) text += value_text(program, group, output, seen);
    text += attr_text(operation.attr);
  }
  return text;
}

namespace {

// The checks of violations(), one pass over the groups.
class Checker {
 public:
  Checker(const Graph& graph, const Program& program)
      : graph_(graph), program_(program), written_(program.values.size(), 0), finished_(graph.nodes.size(), 0) {}

  std::vector<std::string> run() && {
    for (const Group& group : program_.groups) check(group);
    for (const Elided& elided : program_.elided) ++finished_.at(static_cast<std::size_t>(elided.node));
    for (std::size_t node = 0; node < finished_.size(); ++node) {
      if (finished_[node] != 1) {
        say(graph_.nodes[node].name + ": finished " + std::to_string(finished_[node]) + " times");
      }
    }
    check_gradients();
    return std::move(found_);
  }

 private:
  void say(std::string text) { found_.push_back(std::move(text)); }

  /// Whether all of `id` has been written. A sliced value is when its slices are.
  bool ready(ValueId id) const {
    const Value& value = program_.value(id);
    if (value.home != Home::kScratch && value.home != Home::kGradient && value.home != Home::kPaddedWeight) return true;
    if (written_[static_cast<std::size_t>(id)] > 0) return true;
    if (value.parent != kNoValue && ready(value.parent)) return true;
    const auto slices = slices_.find(id);
    if (slices == slices_.end()) return false;
    std::int64_t end = 0;  // the first channel that is not known to be written
    for (const auto& [channel, count] : slices->second) {
      if (channel != end) return false;
      end = channel + count;
    }
    return end == value.shape[value.shape.rank() - 1] - value.padding;
  }

  void check(const Group& group) {
    const std::string what = nodes_text(graph_, group);
    for (const ValueId id : reads(group)) {
      if (!ready(id)) say(what + ": reads " + program_.value(id).name + " before it is written");
    }
    std::set<ValueId> made;
    for (const Operation& operation : group.operations) {
      for (const ValueId input : operation.inputs) {
        if (makes(group, input) && !made.contains(input)) {
          say(what + ": uses " + program_.value(input).name + " before making it");
        }
      }
      for (const ValueId output : operation.outputs) {
        if (!made.insert(output).second) say(what + ": makes " + program_.value(output).name + " twice");
        if (inside(group, output) && program_.value(output).home != Home::kScratch) {
          say(what + ": " + program_.value(output).name + " lives in an arena and must be written");
        }
      }
    }
    for (const ValueId id : group.writes) {
      if (!made.contains(id)) say(what + ": leaves " + program_.value(id).name + " without making it");
      write(id, what);
    }
    finish(group);
  }

  void write(ValueId id, const std::string& what) {
    const Value& value = program_.value(id);
    if (++written_[static_cast<std::size_t>(id)] > 1) say(what + ": writes " + value.name + " again");
    if (value.parent != kNoValue) {
      if (written_[static_cast<std::size_t>(value.parent)] > 0) say(what + ": writes a slice of a finished value");
      slices_[value.parent][value.channel] = value.shape[value.shape.rank() - 1];
    }
  }

  /// A node is finished where the last of its tensors is made; a batch norm that consumers apply, where its
  /// statistics are. Operations that are done again finish nothing.
  void finish(const Group& group) {
    std::set<NodeId> done;
    for (const Operation& operation : group.operations) {
      if (operation.again) continue;
      if (finishes(operation)) done.insert(operation.node);
    }
    for (const NodeId node : done) ++finished_.at(static_cast<std::size_t>(node));
  }

  /// The operation of each kind of node that comes last.
  [[nodiscard]] bool finishes(const Operation& operation) const {
    const Node& node = graph_.node(operation.node);
    switch (node.kind) {
      case OpKind::kConv:
      case OpKind::kFullyConnected:
        if (operation.type == OpType::kCopy || operation.type == OpType::kColumns) return false;
        return node.inputs.size() > 2 ? operation.type == OpType::kBias : operation.type != OpType::kBias;
      case OpKind::kBatchNorm: return operation.type == OpType::kNorm || operation.type == OpType::kNormFinalize;
      case OpKind::kConvBackwardWeights:
      case OpKind::kFullyConnectedBackwardWeights:
        return node.outputs.size() > 1
                   ? operation.type == OpType::kBiasGradient
                   : operation.type == OpType::kConvBackwardWeights || operation.type == OpType::kLinearBackwardWeights;
      case OpKind::kBatchNormBackward:
        return operation.type == OpType::kNormBackward || operation.type == OpType::kNormBackwardApply;
      case OpKind::kAccumulate: return holds(operation, node.outputs[0]);
      case OpKind::kConcat:
      case OpKind::kConcatBackward: return operation.type == OpType::kCopy;
      default: return operation.type != OpType::kCopy;
    }
  }

  [[nodiscard]] bool holds(const Operation& operation, TensorId tensor) const {
    return std::any_of(operation.outputs.begin(), operation.outputs.end(),
                       [&](ValueId id) { return program_.value(id).tensor == tensor; });
  }

  void check_gradients() {
    if (gradients_ready(graph_, program_).back() != graph_.parameters.size()) say("a gradient is not written");
  }

  const Graph& graph_;
  const Program& program_;
  std::vector<int> written_;                                        // by value
  std::vector<int> finished_;                                       // by node
  std::map<ValueId, std::map<std::int64_t, std::int64_t>> slices_;  // of a value: first channel -> channels
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::size_t> gradients_ready(const Graph& graph, const Program& program) {
  std::set<TensorId> written;
  std::vector<std::size_t> ready;
  std::size_t leading = 0;
  for (const Group& group : program.groups) {
    for (const ValueId id : group.writes) {
      if (program.value(id).home == Home::kGradient) written.insert(program.value(id).tensor);
    }
    while (leading < graph.parameters.size() && written.contains(graph.parameters[leading].gradient)) ++leading;
    ready.push_back(leading);
  }
  return ready;
}

std::vector<std::string> violations(const Graph& graph, const Program& program) {
  return Checker(graph, program).run();
}

}  // namespace hvd::models::cudnn
