#include "models/cudnn/run/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/cudnn/lowering/program.h"
#include "models/cudnn/run/batch_loader.h"
#include "models/cudnn/run/plan_search.h"
#include "models/cudnn/run/staging.h"
#include "models/cudnn/run/step_memory.h"
#include "models/cudnn/run/step_weights.h"

namespace hvd::models::cudnn {
namespace {

constexpr int kInputCopies = static_cast<int>(PinnedSlots::kSlots);
constexpr std::chrono::minutes kStepTimeout(10);  // for waits without a deadline from the caller
constexpr std::int32_t kLossScaleGrowthSteps = 2000;

// set_sgd() writes the first kSgdBytes of StepScalars. BatchLoader writes the other bytes.
constexpr std::size_t kSgdBytes = offsetof(kernels::StepScalars, step);
static_assert(kSgdBytes == 4 * sizeof(float));

class Executor final : public DeviceStep {
 public:
  Executor(Graph graph, const PlanSource& plan_source, const ExecutorOptions& options, gpu::GpuRuntime& runtime,
           const Backends& backends, std::shared_ptr<GroupLauncher> launcher, const ArenaAllocator& allocate)
      : graph_(std::move(graph)),
        options_(options),
        runtime_(runtime),
        kernels_(backends.kernels),
        launcher_(std::move(launcher)),
        compute_(runtime.make_stream(gpu::Priority::kNormal)),
        plan_(selected_plan(plan_source)),
        memory_(runtime, plan_.memory,
                memory_need(plan_.memory, graph_.batch_size, launcher_->workspace_bytes(plan_), kInputCopies),
                launcher_->workspace_bytes(plan_), allocate, compute_),
        batches_(graph_, addresses().matrix(images_of(graph_, plan_.program)), memory_, kernels_, runtime, compute_),
        sgd_slots_(runtime, kSgdBytes, "the update's numbers"),
        weights_(graph_, plan_, memory_, kernels_, runtime, compute_),
        results_(runtime.allocate_pinned(kResultBytes, "the losses")),
        ready_(gradients_ready(graph_, plan_.program)) {
    std::memset(results_->bytes.data(), 0, results_->bytes.size());
    find_losses();
    bind();
    weights_.upload_constants(first_loss_scale(plan_.options.compute, options_.loss_scale));
    weights_.upload_initial(options_.seed);
    if (options_.profile) {
      for (std::size_t i = 0; i <= launches_.size(); ++i) marks_.push_back(runtime.make_event(gpu::Timing::kOn));
      seconds_.assign(launches_.size(), 0);
    }
  }

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// Waits for enqueued work, which still uses this object's memory. If the work waits for a reduction that never ends,
  /// drain() times out.
  ~Executor() override {
    for (const gpu::StreamView stream : {batches_.copy_stream(), compute_.view()}) runtime_.drain(stream);
  }

  [[nodiscard]] std::span<const ArenaSlot> slots() const override { return plan_.memory.slots; }
  [[nodiscard]] DataType gradient_type() const override { return plan_.options.gradient; }
  [[nodiscard]] std::span<std::byte> gradient_arena() override { return memory_.arenas().gradients; }
  [[nodiscard]] std::vector<std::span<std::byte>> state_to_broadcast() override {
    std::vector<std::span<std::byte>> state{memory_.arenas().master};
    if (plan_.memory.state > 0) state.push_back(memory_.arenas().state);
    return state;
  }

  void state_changed() override { weights_.refresh_copies(); }

  [[nodiscard]] gpu::StreamView compute_stream() const override { return compute_; }

  void load(const Batch& batch, Deadline deadline) override { batches_.load(batch, deadline); }

  void set_sgd(const SgdOptions& options) override {
    const std::array<float, 4> numbers{static_cast<float>(options.learning_rate), static_cast<float>(options.momentum),
                                       static_cast<float>(options.weight_decay),
                                       static_cast<float>(options.gradient_scale)};
    if (sgd_is_set_ && numbers == sgd_) return;
    sgd_ = numbers;
    sgd_is_set_ = true;
    const std::span<std::byte> slot = sgd_slots_.next(Deadline::after(kStepTimeout));
    std::memcpy(slot.data(), numbers.data(), kSgdBytes);
    runtime_.copy(memory_.scalars(), slot.data(), kSgdBytes, compute_);
    sgd_slots_.emptied_on(compute_);
  }

  void enqueue_forward_backward(GradientSink& sink) override {
    std::size_t told = 0;
    for (std::size_t i = 0; i < launches_.size(); ++i) {
      if (!marks_.empty()) runtime_.record(marks_[i], compute_);
      launches_[i](native());
      if (const auto loss = loss_after_.find(i); loss != loss_after_.end()) {
        runtime_.copy(host_loss(loss->second.index, loss_place_), loss->second.device, sizeof(float), compute_);
      }
      for (; told < ready_[i]; ++told) sink.gradient_ready(told);
    }
    if (!marks_.empty()) collect_times();
  }

  void enqueue_update() override {
    const auto elements = static_cast<std::int64_t>(plan_.memory.parameter_elements);
    const Arenas& arenas = memory_.arenas();
    if (scales_dynamically()) {
      kernels_.find_overflow(arenas.gradients.data(), gradient_type(), elements, memory_.loss_scale(), native());
    }
    kernels_.sgd({.weights = reinterpret_cast<float*>(arenas.master.data()),
                  .momentum = reinterpret_cast<float*>(arenas.momentum.data()),
                  .gradients = arenas.gradients.data(),
                  .gradient_type = gradient_type(),
                  .copy = one_copy() ? nullptr : arenas.weights.data(),
                  .copy_type = storage(plan_.options.compute),
                  .decays = reinterpret_cast<const std::uint8_t*>(memory_.decays().data()),
                  .count = elements,
                  .scalars = memory_.scalars(),
                  .loss_scale = memory_.loss_scale()},
                 native());
    if (!scales_dynamically()) return;
    kernels_.adjust_loss_scale(memory_.loss_scale(), kLossScaleGrowthSteps, native());
    runtime_.copy(results_->bytes.data() + kLossScaleOffset, memory_.loss_scale(), sizeof(kernels::LossScale),
                  compute_);
  }

  void keep_loss_in(std::size_t place) override {
    HVD_ASSERT(place < kLossPlaces);
    loss_place_ = place;
  }
  [[nodiscard]] double loss(std::size_t place) const override {
    double sum = 0;
    for (const auto& [group, loss] : loss_after_) {
      float value = 0;
      std::memcpy(&value, host_loss(loss.index, place), sizeof value);
      sum += loss.weight * static_cast<double>(value);
    }
    return sum;
  }

  [[nodiscard]] std::uint64_t skipped_updates() const override {
    kernels::LossScale last;
    std::memcpy(&last, results_->bytes.data() + kLossScaleOffset, sizeof last);
    return scales_dynamically() ? static_cast<std::uint64_t>(last.skipped) : 0;
  }

  double forward_backward(const Batch& batch, GradientSink& sink) override {
    load(batch, Deadline::after(kStepTimeout));
    enqueue_forward_backward(sink);
    runtime_.synchronize(compute_.view(), Deadline::after(kStepTimeout), "forward and backward");
    return loss(loss_place_);
  }

  void update(const SgdOptions& options) override {
    set_sgd(options);
    enqueue_update();
  }

  void read_parameter(std::size_t parameter, std::span<float> out) override { weights_.read_parameter(parameter, out); }
  void write_parameter(std::size_t parameter, std::span<const float> in) override {
    weights_.write_parameter(parameter, in);
  }
  void read_gradient(std::size_t parameter, std::span<float> out) override { weights_.read_gradient(parameter, out); }

  [[nodiscard]] MemoryReport memory() const override {
    const MemoryLayout& layout = plan_.memory;
    MemoryReport report;
    report.parameters = layout.weights;
    report.gradients = layout.gradients;
    report.momentum = layout.momentum;
    report.master = layout.master;
    report.activations = layout.scratch + layout.images + layout.labels + layout.state + layout.padded_weights;
    report.workspace = memory_.arenas().workspace.size() + batches_.device_bytes();
    return report;
  }

  [[nodiscard]] std::vector<OperationProfile> profile() const override {
    std::vector<OperationProfile> operations;
    for (std::size_t i = 0; i < seconds_.size() && steps_ > 0; ++i) {
      const Group& group = plan_.program.groups[i];
      const NodeCost cost = group_cost(graph_, plan_.program, group);
      std::string how(name(group.provider));
      if (plan_.engine_of[i] >= 0) {
        const EngineCandidates& engine = plan_.engines[static_cast<std::size_t>(plan_.engine_of[i])];
        how += ":" + engine.choices[engine.chosen].text();
      }
      operations.push_back({.node = nodes_text(graph_, group),
                            .kind = operations_text(group),
                            .implementation = std::move(how),
                            .library = group.provider != Provider::kOwn,
                            .seconds = seconds_[i] / static_cast<double>(steps_),
                            .flops = cost.flops,
                            .bytes = cost.bytes});
    }
    return operations;
  }

  [[nodiscard]] std::string engines() const override {
    const std::string engines = chosen_text(plan_), products = launcher_->products_text();
    return engines + (engines.empty() || products.empty() ? "" : "; ") + products;
  }
  [[nodiscard]] std::vector<std::string> notes() const override {
    std::vector<std::string> lines = fallback_lines(graph_, plan_.program);
    lines.insert(lines.end(), notes_.begin(), notes_.end());
    for (std::string& line : launcher_->notes()) lines.push_back(std::move(line));
    return lines;
  }
  [[nodiscard]] std::string description() const override {
    return "cudnn " + plan_.cudnn + " cublaslt " + launcher_->cublaslt().version() + " " +
           std::string(name(plan_.options.compute)) + " " + text(fusion_that_runs(plan_.options)) +
           (plan_.options.deterministic ? " deterministic" : "");
  }

 private:
  struct Loss {
    std::size_t index = 0;
    const std::byte* device = nullptr;
    double weight = 1;
  };
  static constexpr std::size_t kMaxLosses = 8;
  static constexpr std::size_t kLossScaleOffset = kLossPlaces * kMaxLosses * sizeof(float);
  static constexpr std::size_t kResultBytes = kLossScaleOffset + sizeof(kernels::LossScale);

  [[nodiscard]] kernels::Stream native() const { return static_cast<kernels::Stream>(compute_->native); }
  [[nodiscard]] bool one_copy() const { return storage(plan_.options.compute) == DataType::kF32; }
  [[nodiscard]] bool scales_dynamically() const {
    return plan_.options.compute == ComputeType::kFp16 && options_.loss_scale == 0;
  }
  [[nodiscard]] std::byte* host_loss(std::size_t index, std::size_t place) const {
    return results_->bytes.data() + (place * kMaxLosses + index) * sizeof(float);
  }
  [[nodiscard]] Addresses addresses() const {
    return {plan_.program, plan_.memory, storage(plan_.options.compute), memory_.arenas()};
  }

  Plan selected_plan(const PlanSource& plan_source) {
    PlanSearch plan_search(graph_, plan_source, options_, runtime_, compute_, kernels_, *launcher_);
    Plan plan = plan_search.run();
    notes_ = plan_search.notes();
    return plan;
  }

  void bind() {
    launches_ = launcher_->bind(plan_, addresses(),
                                {.graph = graph_,
                                 .kernels = kernels_,
                                 .seed = options_.seed,
                                 .scalars = memory_.scalars(),
                                 .loss_scale = memory_.loss_scale(),
                                 .gradient_prescale = options_.gradient_prescale});
  }

  // Waits for the step that was just enqueued. This wait does no harm, because profiled steps are not benchmarked.
  void collect_times() {
    runtime_.record(marks_.back(), compute_);
    runtime_.synchronize(marks_.back().view(), Deadline::after(kStepTimeout), "a profiled step");
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      seconds_[i] += std::chrono::duration<double>(runtime_.elapsed(marks_[i], marks_[i + 1])).count();
    }
    ++steps_;
  }

  // Each loss is copied to the host right after its group, because later groups may reuse the loss's memory.
  void find_losses() {
    HVD_ASSERT(graph_.losses.size() <= kMaxLosses);
    const Addresses at = addresses();
    for (std::size_t i = 0; i < plan_.program.groups.size(); ++i) {
      const Operation& operation = plan_.program.groups[i].operations.front();
      if (operation.type != OpType::kSoftmaxCrossEntropy) continue;
      const std::size_t index = loss_after_.size();
      loss_after_[i] = {
          .index = index, .device = at.at(operation.outputs[0]), .weight = std::get<LossAttr>(operation.attr).weight};
    }
  }

  Graph graph_;
  ExecutorOptions options_;
  gpu::GpuRuntime& runtime_;
  kernels::Table kernels_;
  std::shared_ptr<GroupLauncher> launcher_;  // outlives the launches
  std::vector<std::string> notes_;
  gpu::Stream compute_;
  Plan plan_;
  StepMemory memory_;
  BatchLoader batches_;
  PinnedSlots sgd_slots_;
  StepWeights weights_;
  gpu::PinnedMemory results_;
  std::vector<std::size_t> ready_;          // by group: gradients_ready()
  std::map<std::size_t, Loss> loss_after_;  // by group that computes the loss
  std::size_t loss_place_ = 0;
  std::vector<Launch> launches_;  // by group
  std::array<float, 4> sgd_{};
  bool sgd_is_set_ = false;
  std::vector<gpu::Event> marks_;  // when profiling: one before each group, and one after the last group
  std::vector<double> seconds_;    // by group, summed over the profiled steps
  std::size_t steps_ = 0;
};

}  // namespace

std::unique_ptr<DeviceStep> make_executor(Graph graph, const PlanSource& plan_source, const ExecutorOptions& options,
                                          gpu::GpuRuntime& runtime, const Backends& backends,
                                          std::shared_ptr<GroupLauncher> launcher, const ArenaAllocator& allocate) {
  return std::make_unique<Executor>(std::move(graph), plan_source, options, runtime, backends, std::move(launcher),
                                    allocate);
}

std::string type_refusal(const gpu::Device& device, ComputeType type, int kernels_from) {
  const int capability = 10 * device.compute_major + device.compute_minor;
  constexpr int kTuring = 75;  // oldest capability for CUDA 13 (its release notes, "Deprecated Architectures")
  const std::string is = device.name + " has compute capability " + std::to_string(device.compute_major) + "." +
                         std::to_string(device.compute_minor);
  if (capability < kernels_from) {
    return is + ", and this build has kernels from " + std::to_string(kernels_from / 10) + "." +
           std::to_string(kernels_from % 10) + " on: configure it with " +
           (capability < kTuring ? "a CUDA Toolkit 12 and " : "") +
           "-DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(capability);
  }
  // bf16 and tf32 need compute capability 8.0, fp16 arithmetic needs 5.3. Source: CUDA C++ Programming Guide, "Compute
  // Capabilities".
  constexpr int kAmpere = 80;
  const bool newer = type == ComputeType::kBf16 || type == ComputeType::kTf32;
  if (newer && capability < kAmpere) {
    return is + "; " + std::string(name(type)) + " needs 8.0: use --dtype fp16 or fp32";
  }
  return {};
}

}  // namespace hvd::models::cudnn
