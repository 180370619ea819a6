#include "tests/cudnn/lowering/program_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace hvd::models::cudnn::testing {
namespace {

bool makes(const Group& group, ValueId id) {
  return std::any_of(group.operations.begin(), group.operations.end(), [&](const Operation& operation) {
    return std::find(operation.outputs.begin(), operation.outputs.end(), id) != operation.outputs.end();
  });
}

// Checks in one pass over the groups what violations() promises.
class Checker {
 public:
  Checker(const Graph& graph, const Program& program)
      : graph_(graph), program_(program), written_(program.values.size(), 0), finished_(graph.nodes.size(), 0) {}

  std::vector<std::string> run() && {
    for (const Group& group : program_.groups) check(group);
    for (const NodeId elided : program_.elided) ++finished_.at(static_cast<std::size_t>(elided));
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

  /// Returns true if the whole value `id` has been written. A value with slices is ready when all its slices are
  /// written.
  bool ready(ValueId id) const {
    const Value& value = program_.value(id);
    if (value.storage != Storage::kScratch && value.storage != Storage::kGradient &&
        value.storage != Storage::kPaddedWeight)
      return true;
    if (written_[static_cast<std::size_t>(id)] > 0) return true;
    if (value.parent != kNoValue && ready(value.parent)) return true;
    const auto slices = slices_.find(id);
    if (slices == slices_.end()) return false;
    std::int64_t end = 0;  // all channels below `end` are written
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
        if (inside(group, output) && program_.value(output).storage != Storage::kScratch) {
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

  /// Counts the nodes that `group` finishes. A node is finished by the group that makes the node's last tensor. A batch
  /// norm is finished by kNormFinalize. Operations that repeat earlier work finish nothing.
  void finish(const Group& group) {
    std::set<NodeId> done;
    for (const Operation& operation : group.operations) {
      if (operation.again) continue;
      if (finishes(operation)) done.insert(operation.node);
    }
    for (const NodeId node : done) ++finished_.at(static_cast<std::size_t>(node));
  }

  /// Returns true if `operation` is the last operation of its node.
  [[nodiscard]] bool finishes(const Operation& operation) const {
    const Node& node = graph_.node(operation.node);
    switch (node.kind) {
      case OpKind::kConv:
      case OpKind::kFullyConnected:
        if (operation.type == OpType::kCopy || operation.type == OpType::kColumns) return false;
        return node.inputs.size() > 2 ? operation.type == OpType::kBias : operation.type != OpType::kBias;
      case OpKind::kBatchNorm: return operation.type == OpType::kNormFinalize;
      case OpKind::kConvBackwardWeights:
      case OpKind::kFullyConnectedBackwardWeights:
        return node.outputs.size() > 1
                   ? operation.type == OpType::kBiasGradient
                   : operation.type == OpType::kConvBackwardWeights || operation.type == OpType::kLinearBackwardWeights;
      case OpKind::kBatchNormBackward: return operation.type == OpType::kNormBackwardApply;
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
  std::vector<int> written_;                                        // [value]: how often it was written
  std::vector<int> finished_;                                       // [node]: how often it was finished
  std::map<ValueId, std::map<std::int64_t, std::int64_t>> slices_;  // [value]: written slices, first channel -> count
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> violations(const Graph& graph, const Program& program) {
  return Checker(graph, program).run();
}

}  // namespace hvd::models::cudnn::testing
