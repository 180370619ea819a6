// Runs a differentiated graph node by node with the pure functions of ops.h. Every tensor has its own memory for the
// whole step, so that no tensor can be overwritten too early.
#include "tests/models/reference/reference_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "models/graph/cost.h"
#include "models/random.h"
#include "models/train_step.h"
#include "tests/models/reference/ops.h"

namespace hvd::models {
namespace {

using reference::In;
using reference::Out;

class ReferenceStep final : public TrainStep, public ShardedUpdate {
 public:
  ReferenceStep(Graph graph, const StepOptions& options, const ArenaAllocator& allocate)
      : graph_(std::move(graph)), options_(options) {
    require_floating(options.gradient);
    if (graph_.first_backward == graph_.nodes.size()) {
      throw Error(Errc::kInvalidArgument, graph_.model + ": the graph has no backward nodes; call differentiate()");
    }
    place_parameters();
    for (std::size_t id = 0; id < graph_.tensors.size(); ++id) allocate_tensor(id);
    gradients_ = allocate(parameters_.size() * size_of(options.gradient));
    node_seconds_.assign(options.profile ? graph_.nodes.size() : 0, 0.0);
  }

  [[nodiscard]] std::span<const ArenaSlot> slots() const override { return slots_; }
  [[nodiscard]] DataType gradient_type() const override { return options_.gradient; }
  [[nodiscard]] std::span<std::byte> gradient_arena() override { return gradients_; }

  [[nodiscard]] std::vector<std::span<std::byte>> state_to_broadcast() override {
    std::vector<std::span<std::byte>> state{std::as_writable_bytes(std::span(parameters_))};
    for (std::size_t id = 0; id < graph_.tensors.size(); ++id) {
      if (graph_.tensors[id].role != TensorRole::kState) continue;
      state.push_back(std::as_writable_bytes(std::span(values_[id])));
    }
    return state;
  }
  void state_changed() override {}  // nothing is derived from the parameters

  double forward_backward(const Batch& batch, GradientSink& sink) override {
    load_batch(batch);
    double loss = 0;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const auto start = Clock::now();
      run(node, batch);
      if (options_.profile) node_seconds_[i] += std::chrono::duration<double>(Clock::now() - start).count();
      if (node.kind == OpKind::kSoftmaxCrossEntropy) {
        loss += std::get<LossAttr>(node.attr).weight * values_[static_cast<std::size_t>(node.outputs[0])].at(0);
      }
      publish_gradients(node, sink);
    }
    ++steps_;
    return loss;
  }

  ShardedUpdate* sharded() override { return this; }
  void keep_momentum(std::span<const ArenaRange> /*share*/) override { momentum_.clear(); }
  std::span<std::byte> weight_arena() override { return std::as_writable_bytes(std::span(parameters_)); }
  [[nodiscard]] DataType weight_type() const override { return DataType::kF64; }

  void update(const SgdOptions& sgd) override {
    const ArenaRange all{0, parameters_.size()};
    update_share(sgd, std::span(&all, 1));
  }

  void update_share(const SgdOptions& sgd, std::span<const ArenaRange> share) override {
    if (momentum_.empty()) momentum_.assign(parameters_.size(), 0.0);
    for (const ArenaRange& range : share) update_range(sgd, range);
  }

  void read_parameter(std::size_t parameter, std::span<float> values) override {
    const auto from = parameter_values(parameter, values.size());
    std::transform(from.begin(), from.end(), values.begin(), [](double v) { return static_cast<float>(v); });
  }
  void write_parameter(std::size_t parameter, std::span<const float> values) override {
    write_parameter_values(parameter, values);
  }
  void read_gradient(std::size_t parameter, std::span<float> values) override {
    const std::size_t offset = slot(parameter, values.size()).offset;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(load(options_.gradient, gradients_, offset + i));
    }
  }

  [[nodiscard]] MemoryReport memory() const override {
    MemoryReport report;
    report.parameters = parameters_.size() * sizeof(double);
    report.gradients = gradients_.size();
    report.momentum = momentum_.size() * sizeof(double);
    for (const auto& values : values_) report.activations += values.size() * sizeof(double);
    report.workspace = mask_.size();
    return report;
  }

  [[nodiscard]] std::vector<OperationProfile> profile() const override {
    std::vector<OperationProfile> operations;
    for (std::size_t i = 0; i < node_seconds_.size() && steps_ > 0; ++i) {
      const Node& node = graph_.nodes[i];
      const NodeCost node_cost = cost(graph_, node, sizeof(double));
      operations.push_back({.node = node.name,
                            .kind = std::string(name(node.kind)),
                            .implementation = "reference:double",
                            .library = false,
                            .seconds = node_seconds_[i] / static_cast<double>(steps_),
                            .flops = node_cost.flops,
                            .bytes = node_cost.bytes});
    }
    return operations;
  }

  [[nodiscard]] std::string description() const override { return "reference fp64 (naive)"; }

 private:
  void update_range(const SgdOptions& sgd, const ArenaRange& range) {
    for (std::size_t p = 0; p < slots_.size(); ++p) {
      const double decay = graph_.parameters[p].decay ? sgd.weight_decay : 0.0;
      const std::size_t end = std::min(range.begin + range.count, slots_[p].offset + slots_[p].count);
      for (std::size_t i = std::max(range.begin, slots_[p].offset); i < end; ++i) {
        const double g = sgd.gradient_scale * load(options_.gradient, gradients_, i) + decay * parameters_[i];
        momentum_[i] = sgd.momentum * momentum_[i] + g;
        parameters_[i] -= sgd.learning_rate * momentum_[i];
      }
    }
  }

  // Places the parameters in order, without gaps. Initial values have single precision, as in every backend.
  void place_parameters() {
    parameter_offset_.assign(graph_.tensors.size(), 0);
    std::size_t offset = 0;
    for (const Parameter& parameter : graph_.parameters) {
      const Shape& shape = graph_.tensor(parameter.value).shape;
      const auto count = static_cast<std::size_t>(shape.count());
      slots_.push_back({.name = parameter.name, .offset = offset, .count = count, .shape = shape});
      parameter_offset_[static_cast<std::size_t>(parameter.value)] = offset;
      offset += count;
    }
    parameters_.resize(offset);
    std::vector<float> initial;
    for (std::size_t p = 0; p < slots_.size(); ++p) {
      initial.resize(slots_[p].count);
      initial_value(graph_.parameters[p], slots_[p].shape, options_.seed, initial);
      write_parameter_values(p, initial);
    }
  }

  void write_parameter_values(std::size_t parameter, std::span<const float> values) {
    const auto to = parameter_values(parameter, values.size());
    std::copy(values.begin(), values.end(), to.begin());
  }

  void allocate_tensor(std::size_t id) {
    values_.emplace_back();
    const TensorDesc& tensor = graph_.tensors[id];
    if (tensor.role == TensorRole::kParameter || tensor.role == TensorRole::kGradient ||
        tensor.role == TensorRole::kLabel) {
      return;
    }
    const bool variance = tensor.role == TensorRole::kState && tensor.name.ends_with(".running_var");
    values_.back().assign(static_cast<std::size_t>(tensor.shape.count()), variance ? 1.0 : 0.0);
  }

  void load_batch(const Batch& batch) {
    const Shape& images = graph_.tensor(graph_.images).shape;
    const Shape& labels = graph_.tensor(graph_.labels).shape;
    if (static_cast<std::int64_t>(batch.images.size()) != images.count() ||
        static_cast<std::int64_t>(batch.labels.size()) != labels.count()) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{}: the step was built for images {} and labels {}, got {} and {} elements",
                              graph_.model, images.text(), labels.text(), batch.images.size(), batch.labels.size()));
    }
    auto& values = values_[static_cast<std::size_t>(graph_.images)];
    std::copy(batch.images.begin(), batch.images.end(), values.begin());
  }

  [[nodiscard]] const ArenaSlot& slot(std::size_t parameter, std::size_t count) const {
    if (parameter >= slots_.size() || slots_[parameter].count != count) {
      const std::string has = parameter < slots_.size() ? std::to_string(slots_[parameter].count) : "no";
      throw Error(Errc::kInvalidArgument, fmt::format("{}: parameter {} has {} elements, the caller's array {}",
                                                      graph_.model, parameter, has, count));
    }
    return slots_[parameter];
  }
  std::span<double> parameter_values(std::size_t parameter, std::size_t count) {
    return std::span(parameters_).subspan(slot(parameter, count).offset, count);
  }

  /// Returns a view of any tensor for reading.
  [[nodiscard]] In in(TensorId id) {
    const TensorDesc& tensor = graph_.tensor(id);
    const auto index = static_cast<std::size_t>(id);
    if (tensor.role != TensorRole::kParameter) return {values_[index], tensor.shape};
    return {std::span(parameters_).subspan(parameter_offset_[index], static_cast<std::size_t>(tensor.shape.count())),
            tensor.shape};
  }
  [[nodiscard]] In optional_in(const Node& node, std::size_t index) {
    return index < node.inputs.size() ? in(node.inputs[index]) : In{};
  }

  /// Returns a view of a tensor for writing; empty for kNoTensor. Allocates the memory of a gradient;
  /// publish_gradients() frees this memory.
  [[nodiscard]] Out out(TensorId id) {
    if (id == kNoTensor) return {};
    const TensorDesc& tensor = graph_.tensor(id);
    auto& values = values_[static_cast<std::size_t>(id)];
    if (tensor.role == TensorRole::kGradient) values.resize(static_cast<std::size_t>(tensor.shape.count()));
    return {values, tensor.shape};
  }
  [[nodiscard]] Out optional_out(const Node& node, std::size_t index) {
    return index < node.outputs.size() ? out(node.outputs[index]) : Out{};
  }

  void publish_gradients(const Node& node, GradientSink& sink) {
    for (const TensorId output : node.outputs) {
      if (output == kNoTensor || graph_.tensor(output).role != TensorRole::kGradient) continue;
      // Parameters are in gradient-production order, so the gradient that was just made is the next one to publish.
      HVD_ASSERT(graph_.parameters.at(published_).gradient == output);
      auto& values = values_[static_cast<std::size_t>(output)];
      const std::size_t element = size_of(options_.gradient);
      store(options_.gradient, values,
            gradients_.subspan(slots_[published_].offset * element, values.size() * element));
      values = {};
      sink.gradient_ready(published_);
      published_ = (published_ + 1) % slots_.size();
    }
  }

  std::span<const std::uint8_t> mask(const Node& node, const Batch& batch) {
    const Shape& shape = graph_.tensor(node.outputs[0]).shape;
    mask_.resize(static_cast<std::size_t>(shape.count()));
    dropout_mask(std::get<DropoutAttr>(node.attr),
                 {.seed = options_.seed,
                  .step = batch.step,
                  .first_sample = batch.first_sample,
                  .features = static_cast<std::uint64_t>(shape.count() / shape[0])},
                 mask_);
    return mask_;
  }

  void run(const Node& node, const Batch& batch) {
    if (is_backward(node.kind)) {
      run_backward(node, batch);
    } else {
      run_forward(node, batch);
    }
  }

  void run_forward(const Node& node, const Batch& batch) {
    const In x = in(node.inputs[0]);
    const Out y = out(node.outputs[0]);
    switch (node.kind) {
      case OpKind::kConv:
        return reference::conv(std::get<Window>(node.attr), x, in(node.inputs[1]), optional_in(node, 2), y);
      case OpKind::kBatchNorm:
        return reference::batch_norm(std::get<BatchNormAttr>(node.attr), x, in(node.inputs[1]), in(node.inputs[2]),
                                     {.y = y,
                                      .mean = out(node.outputs[1]),
                                      .inv_std = out(node.outputs[2]),
                                      .running_mean = out(node.inputs[3]),
                                      .running_var = out(node.inputs[4])});
      case OpKind::kRelu: return reference::relu(x, y);
      case OpKind::kMaxPool: return reference::max_pool(std::get<Window>(node.attr), x, y);
      case OpKind::kAvgPool: return reference::avg_pool(std::get<Window>(node.attr), x, y);
      case OpKind::kGlobalAvgPool: return reference::global_avg_pool(x, y);
      case OpKind::kFullyConnected: return reference::fully_connected(x, in(node.inputs[1]), in(node.inputs[2]), y);
      case OpKind::kAdd: return reference::add(x, in(node.inputs[1]), y);
      case OpKind::kConcat: return reference::concat(all_in(node), y);
      case OpKind::kDropout:
        return reference::dropout(mask(node, batch), dropout_scale(std::get<DropoutAttr>(node.attr)), x, y);
      case OpKind::kSoftmaxCrossEntropy:
        y.data[0] = reference::softmax_cross_entropy(x, batch.labels, out(node.outputs[1]));
        return;
      default: HVD_ASSERT(!"not a forward operation");
    }
  }

  void run_backward(const Node& node, const Batch& batch) {
    const In first = in(node.inputs[0]);
    const Out dx = out(node.outputs[0]);
    switch (node.kind) {
      case OpKind::kConvBackwardWeights:
        return reference::conv_backward_weights(std::get<Window>(node.attr), first, in(node.inputs[1]), dx,
                                                optional_out(node, 1));
      case OpKind::kConvBackwardData:
        return reference::conv_backward_data(std::get<Window>(node.attr), first, in(node.inputs[1]), dx);
      case OpKind::kBatchNormBackward:
        return reference::batch_norm_backward({.x = first,
                                               .gamma = in(node.inputs[1]),
                                               .mean = in(node.inputs[2]),
                                               .inv_std = in(node.inputs[3]),
                                               .dy = in(node.inputs[4])},
                                              dx, out(node.outputs[1]), out(node.outputs[2]));
      case OpKind::kReluBackward: return reference::relu_backward(first, in(node.inputs[1]), dx);
      case OpKind::kMaxPoolBackward:
        return reference::max_pool_backward(std::get<Window>(node.attr), first, in(node.inputs[1]), in(node.inputs[2]),
                                            dx);
      case OpKind::kAvgPoolBackward: return reference::avg_pool_backward(std::get<Window>(node.attr), first, dx);
      case OpKind::kGlobalAvgPoolBackward: return reference::global_avg_pool_backward(first, dx);
      case OpKind::kFullyConnectedBackwardWeights:
        return reference::fully_connected_backward_weights(first, in(node.inputs[1]), dx, out(node.outputs[1]));
      case OpKind::kFullyConnectedBackwardData:
        return reference::fully_connected_backward_data(first, in(node.inputs[1]), dx);
      case OpKind::kConcatBackward: return reference::concat_backward(first, concat_diffs(node));
      case OpKind::kDropoutBackward:
        return reference::dropout(mask(node, batch), dropout_scale(std::get<DropoutAttr>(node.attr)), first, dx);
      case OpKind::kSoftmaxCrossEntropyBackward:
        return reference::softmax_cross_entropy_backward(std::get<LossAttr>(node.attr).weight, first, batch.labels, dx);
      case OpKind::kAccumulate: return reference::accumulate(all_in(node), dx);
      default: HVD_ASSERT(!"not a backward operation");
    }
  }

  std::vector<In> all_in(const Node& node) {
    std::vector<In> inputs;
    for (const TensorId input : node.inputs) inputs.push_back(in(input));
    return inputs;
  }

  // Sets the shape even if an input has no diff (the images), because that input takes up channels of dy, too.
  std::vector<Out> concat_diffs(const Node& node) {
    const std::vector<TensorId>& inputs = graph_.node(node.forward).inputs;
    std::vector<Out> diffs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Out diff = out(node.outputs[i]);
      diff.shape = graph_.tensor(inputs[i]).shape;
      diffs.push_back(diff);
    }
    return diffs;
  }

  Graph graph_;
  StepOptions options_;
  std::vector<ArenaSlot> slots_;
  std::vector<std::size_t> parameter_offset_;  // [tensor]: first element in parameters_
  std::vector<double> parameters_, momentum_;
  std::span<std::byte> gradients_;           // memory from the allocator
  std::vector<std::vector<double>> values_;  // [tensor]
  std::vector<std::uint8_t> mask_;
  std::size_t published_ = 0;
  std::vector<double> node_seconds_;
  std::uint64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<TrainStep> make_reference_step(Graph graph, const StepOptions& options,
                                               const ArenaAllocator& allocate) {
  return std::make_unique<ReferenceStep>(std::move(graph), options, allocate);
}

}  // namespace hvd::models
