// Fake GPUs for a machine without GPUs: fake runtimes and a fake NCCL over one FakeWorld, and a DeviceStep (FakeStep)
// with a few small tensors. Each kernel of a FakeStep is one line of arithmetic. Tests repeat this arithmetic to get
// the expected values.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/world/gpu_backend.h"
#include "engine/base/error.h"
#include "tests/comm/fake_nccl.h"
#include "tests/gpu/fake_runtime.h"

namespace hvd::test {

/// The faults to inject into a FakeStep.
struct FakeStepFaults {
  bool writes_late = false;     ///< gradients change after they were marked ready
  bool weights_drift = false;   ///< every GPU computes a different update
  int drifts_on = -1;           ///< the one GPU whose update differs from the other GPUs' update; -1: none
  std::uint64_t breaks_at = 0;  ///< the launch (1, 2, ...) in which a kernel fails; 0: none
  int load_fails_at = 0;        ///< the call (1, 2, ...) of load() that throws; 0: none
  int load_fails_on = 0;        ///< the GPU on which load() throws
  int fails_on = -1;            ///< the GPU whose kernels fail once `fails_now` is set; -1: none
  std::shared_ptr<std::atomic<bool>> fails_now = std::make_shared<std::atomic<bool>>(false);
  std::string out_of_memory;            ///< if not empty, making the step throws kOutOfMemory with this text
  std::string last_rank_fails;          ///< if not empty, all ranks throw this text as the last rank's error
  bool first_overflows = false;         ///< the first step's gradients are infinite, and its update does nothing
  bool ignores_agreed_engines = false;  ///< all GPUs but the first keep their own fastest engines
  std::vector<double> losses;           ///< [step]; later steps repeat the last loss; if empty, loss = number of step
};

class FakeStep final : public models::DeviceStep {
 public:
  static constexpr std::array<std::size_t, 5> kCounts{7, 300, 12, 64, 5};
  static constexpr std::size_t kElements = 7 + 300 + 12 + 64 + 5;

  FakeStep(FakeRuntime& gpu, const models::ArenaAllocator& allocate, FakeStepFaults faults,
           const models::StepOptions& options, const models::CudnnOptions& cudnn)
      : gpu_(gpu),
        faults_(std::move(faults)),
        profile_(options.profile),
        prescale_(static_cast<float>(options.gradient_prescale)),
        stream_(gpu.make_stream(gpu::Priority::kNormal)) {
    if (cudnn.tune) {  // each GPU finds its own engine to be the fastest
      engines_ = "engine " + std::to_string(gpu.device().index);
      const std::vector<std::string> all = cudnn.exchange ? cudnn.exchange(engines_) : std::vector{engines_};
      if (!faults_.ignores_agreed_engines) engines_ = all.at(0);
    }
    if (cudnn.exchange) reports_ = cudnn.exchange("report of GPU " + std::to_string(gpu.device().index));
    std::size_t offset = 0;
    for (std::size_t i = 0; i < kCounts.size(); ++i) {
      slots_.push_back({.name = "layer" + std::to_string(i),
                        .offset = offset,
                        .count = kCounts[i],
                        .shape = models::Shape{static_cast<std::int64_t>(kCounts[i])}});
      offset += kCounts[i];
    }
    gradients_ = allocate(kElements * sizeof(float));
    parameters_ = gpu.allocate(kElements * sizeof(float), "parameters");
    momentum_ = gpu.allocate(kElements * sizeof(float), "momentum");
    numbers_ = gpu.allocate(sizeof(Numbers), "numbers");
    host_ = gpu.allocate_pinned(2 * sizeof(Numbers), "numbers");
    losses_ = gpu.allocate_pinned(kLossPlaces * sizeof(double), "losses");
    launches_ = gpu.allocate(sizeof(std::uint64_t), "launches");
    gpu.fill(parameters_->bytes.data(), std::byte{0}, parameters_->bytes.size(), stream_);
    gpu.fill(momentum_->bytes.data(), std::byte{0}, momentum_->bytes.size(), stream_);
    gpu.fill(launches_->bytes.data(), std::byte{0}, sizeof(std::uint64_t), stream_);
  }

  FakeStep(const FakeStep&) = delete;
  FakeStep& operator=(const FakeStep&) = delete;
  ~FakeStep() override {
    try {  // waits, because running kernels still use this object
      gpu_.synchronize(stream_, Deadline::after(std::chrono::seconds(5)), "the last step");
    } catch (const Error&) {  // an error means that the GPU has failed and runs no kernel
      return;
    }
  }

  [[nodiscard]] std::span<const models::ArenaSlot> slots() const override { return slots_; }
  [[nodiscard]] DataType gradient_type() const override { return DataType::kF32; }
  [[nodiscard]] std::span<std::byte> gradient_arena() override { return gradients_; }
  [[nodiscard]] std::vector<std::span<std::byte>> state_to_broadcast() override { return {parameters_->bytes}; }
  void state_changed() override {}
  [[nodiscard]] gpu::StreamView compute_stream() const override { return stream_; }

  /// The input of a step: a number that depends on the batch's images and labels.
  static float input_of(const models::Batch& batch) {
    double sum = 0, labels = 0;
    for (const float value : batch.images) sum += static_cast<double>(value);
    for (const std::int32_t label : batch.labels) labels = 0.5 * labels + label;
    return static_cast<float>(sum / static_cast<double>(batch.images.size()) + 1e-3 * labels);
  }

  void load(const models::Batch& batch, Deadline /*deadline*/) override {
    if (++loads_ == faults_.load_fails_at && gpu_.device().index == faults_.load_fails_on) {
      throw Error(Errc::kBackend, "the copy of batch " + std::to_string(loads_) + " failed");
    }
    from_ = 1 - from_;  // the previous step's copy may still read the half of host_ that it used
    pinned().input = input_of(batch);
    send(offsetof(Numbers, input), sizeof(float));
  }
  void set_sgd(const models::SgdOptions& options) override {
    pinned().sgd = {static_cast<float>(options.learning_rate), static_cast<float>(options.momentum),
                    static_cast<float>(options.gradient_scale)};
    send(offsetof(Numbers, sgd), sizeof(Sgd));
  }

  void enqueue_forward_backward(models::GradientSink& sink) override {
    gpu_.kernel(stream_, "forward", {numbers_->bytes}, {launches_->bytes}, [this] {
      std::uint64_t launches = 0;
      std::memcpy(&launches, launches_->bytes.data(), sizeof launches);
      ++launches;
      std::memcpy(launches_->bytes.data(), &launches, sizeof launches);
      const bool fails = gpu_.device().index == faults_.fails_on && *faults_.fails_now;
      if (fails || launches == faults_.breaks_at) throw Error(Errc::kBackend, "an illegal memory access");
    });
    const std::span<std::byte> loss = losses_->bytes.subspan(place_ * sizeof(double), sizeof(double));
    gpu_.kernel(stream_, "loss", {launches_->bytes}, {loss}, [this, loss] {
      std::uint64_t launches = 0;
      std::memcpy(&launches, launches_->bytes.data(), sizeof launches);
      const double value = faults_.losses.empty()
                               ? static_cast<double>(launches)
                               : faults_.losses[std::min<std::size_t>(launches, faults_.losses.size()) - 1];
      std::memcpy(loss.data(), &value, sizeof value);
    });
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const std::span<std::byte> slot =
          gradients_.subspan(slots_[i].offset * sizeof(float), slots_[i].count * sizeof(float));
      gpu_.kernel(stream_, "backward " + std::to_string(i), {numbers_->bytes, parameters_->bytes, launches_->bytes},
                  {slot}, [this, i] { backward(slots_[i]); });
      sink.gradient_ready(i);
      if (!faults_.writes_late) continue;
      gpu_.kernel(stream_, "late " + std::to_string(i), {}, {slot}, [this, i] { gradient()[slots_[i].offset] += 1; });
    }
  }
  void enqueue_update() override {
    gpu_.kernel(stream_, "update", {numbers_->bytes, gradients_}, {parameters_->bytes, momentum_->bytes}, [this] {
      Numbers now;
      std::memcpy(&now, numbers_->bytes.data(), sizeof now);
      if (faults_.weights_drift) now.sgd.learning_rate *= 1.0F + 0.1F * static_cast<float>(gpu_.device().index);
      if (faults_.drifts_on == gpu_.device().index) now.sgd.learning_rate *= 1.1F;
      if (!std::isfinite(gradient()[0])) return;
      for (std::size_t k = 0; k < kElements; ++k) update(now.sgd, gradient()[k], momentum()[k], parameter()[k]);
    });
  }
  void keep_loss_in(std::size_t place) override { place_ = place; }
  /// Returns the step's loss from FakeStepFaults::losses, or the step's number (1, 2, ...) if `losses` is empty.
  [[nodiscard]] double loss(std::size_t place) const override {
    double value = 0;
    std::memcpy(&value, &losses_->bytes[place * sizeof value], sizeof value);
    return value;
  }

  double forward_backward(const models::Batch& /*batch*/, models::GradientSink& /*sink*/) override { return 0; }
  void update(const models::SgdOptions& /*options*/) override {}
  void read_parameter(std::size_t i, std::span<float> out) override {
    gpu_.synchronize(stream_, Deadline::after(std::chrono::seconds(20)), "a parameter");
    std::memcpy(out.data(), parameter() + slots_[i].offset, out.size_bytes());
  }
  void write_parameter(std::size_t /*parameter*/, std::span<const float> /*in*/) override {}
  void read_gradient(std::size_t /*parameter*/, std::span<float> /*out*/) override {}
  [[nodiscard]] models::MemoryReport memory() const override {
    return {.parameters = kElements * sizeof(float), .gradients = kElements * sizeof(float)};
  }
  /// A convolution takes 2 ms, twice the time that an H200 needs at its fp32 peak of 67 TFLOP/s. A ReLU takes 3 ms,
  /// three times the time that an H200 needs at its memory peak of 4.8 TB/s.
  [[nodiscard]] std::vector<models::OperationProfile> profile() const override {
    if (!profile_) return {};
    return {{.node = "a", .kind = "conv", .implementation = {}, .library = true, .seconds = 2e-3, .flops = 67e9},
            {.node = "b", .kind = "relu", .implementation = {}, .seconds = 3e-3, .bytes = 4.8e9}};
  }
  [[nodiscard]] std::string description() const override { return "fake step"; }
  [[nodiscard]] std::string engines() const override { return engines_; }
  [[nodiscard]] std::vector<std::string> notes() const override {
    std::vector<std::string> lines{"not served at a: level 2, conv+b"};
    lines.insert(lines.end(), reports_.begin(), reports_.end());
    return lines;
  }

  struct Sgd {
    float learning_rate = 0, momentum = 0, scale = 1;
  };
  /// The gradient of element `k`, counted from the start of the arena.
  static float gradient_of(float input, float weight, std::size_t k) {
    return input * static_cast<float>(k % 5 + 1) + 0.5F * weight;
  }
  static void update(const Sgd& sgd, float gradient, float& momentum, float& weight) {
    momentum = sgd.momentum * momentum + sgd.scale * gradient;
    weight -= sgd.learning_rate * momentum;
  }

 private:
  struct Numbers {
    Sgd sgd;
    float input = 0;
  };
  Numbers& pinned() { return *(reinterpret_cast<Numbers*>(host_->bytes.data()) + from_); }
  void send(std::size_t offset, std::size_t bytes) {
    gpu_.copy(numbers_->bytes.data() + offset, reinterpret_cast<std::byte*>(&pinned()) + offset, bytes, stream_);
  }
  float* gradient() { return reinterpret_cast<float*>(gradients_.data()); }
  float* parameter() { return reinterpret_cast<float*>(parameters_->bytes.data()); }
  float* momentum() { return reinterpret_cast<float*>(momentum_->bytes.data()); }
  void backward(const models::ArenaSlot& slot) {
    Numbers now;
    std::memcpy(&now, numbers_->bytes.data(), sizeof now);
    std::uint64_t launches = 0;
    std::memcpy(&launches, launches_->bytes.data(), sizeof launches);
    for (std::size_t k = slot.offset; k < slot.offset + slot.count; ++k) {
      gradient()[k] = faults_.first_overflows && launches == 1 ? std::numeric_limits<float>::infinity()
                                                               : prescale_ * gradient_of(now.input, parameter()[k], k);
    }
  }

  FakeRuntime& gpu_;
  FakeStepFaults faults_;
  bool profile_;
  float prescale_;
  std::string engines_ = "engine of cuDNN's choice";
  std::vector<std::string> reports_;  // [rank] the rank's report
  std::vector<models::ArenaSlot> slots_;
  gpu::Stream stream_;
  std::span<std::byte> gradients_;  // owned by the allocator
  gpu::DeviceMemory parameters_, momentum_, numbers_, launches_;
  gpu::PinnedMemory host_, losses_;
  int loads_ = 0;
  std::size_t from_ = 0;   // the half of host_ that this step uses: 0 or 1
  std::size_t place_ = 0;  // index of the next loss in losses_
};

class FakeGpus final : public bench::GpuBackend {
 public:
  explicit FakeGpus(int visible, std::uint64_t seed = 1) : world_(seed), hub_(world_) {
    list_.driver_version = 13000;
    list_.runtime_version = 13000;
    for (int i = 0; i < visible; ++i) {
      gpu::Device device;
      device.index = i;
      device.name = "Fake H200";
      device.uuid = "GPU-fake-" + std::to_string(i);
      device.visible = visible;
      list_.devices.push_back(device);
    }
  }

  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;
  ~FakeGpus() override {
    const MutexLock lock(mutex_);
    hub_.end(libraries_);
  }

  gpu::DeviceList list() override { return list_; }
  std::string unsupported_reason() override { return missing; }
  std::unique_ptr<gpu::GpuRuntime> open(int index) override {
    if (index == broken_gpu) throw Error(Errc::kBackend, "GPU " + std::to_string(index) + " has fallen off the bus");
    const gpu::Device& device = list_.devices.at(static_cast<std::size_t>(index));
    FakeOptions options;
    options.uuid = device.uuid;
    options.name = device.name;
    options.visible = visible_to_a_rank > 0 ? visible_to_a_rank : device.visible;
    auto runtime = std::make_unique<FakeRuntime>(world_, index, options);
    if (on_call) runtime->on_call = [this, index](const FakeCall& call) { on_call(index, call); };
    if (on_launch) runtime->on_launch = [this, index] { on_launch(index); };
    if (on_capture) runtime->on_capture = [this, index] { on_capture(index); };
    if (on_timer) runtime->on_timer = [this, index](std::chrono::nanoseconds wait) { on_timer(index, wait); };
    return runtime;
  }
  std::shared_ptr<comm::nccl::Api> load_nccl(gpu::GpuRuntime& runtime) override {
    if (!no_nccl.empty()) throw Error(Errc::kUnsupported, no_nccl);
    auto library = std::make_shared<FakeNccl>(hub_, dynamic_cast<FakeRuntime&>(runtime), nccl);
    const MutexLock lock(mutex_);
    libraries_.push_back(library);
    return library;
  }
  std::unique_ptr<models::DeviceStep> make_step(models::Graph /*graph*/, const models::StepOptions& options,
                                                const models::CudnnOptions& cudnn, gpu::GpuRuntime& runtime,
                                                const models::ArenaAllocator& allocate) override {
    if (!faults.out_of_memory.empty()) throw Error(Errc::kOutOfMemory, faults.out_of_memory);
    if (!faults.last_rank_fails.empty()) {
      throw models::ErrorOfAllRanks(cudnn.exchange({}).size() - 1, Errc::kMismatch, faults.last_rank_fails);
    }
    if (runtime.device().index == 0) {
      asked = cudnn;
      asked_threads = options.threads;
    }
    return std::make_unique<FakeStep>(dynamic_cast<FakeRuntime&>(runtime), allocate, faults, options, cudnn);
  }
  /// All violations so far: data races, memory freed while in use, calls in a wrong order.
  [[nodiscard]] std::vector<std::string> violations() { return world_.violations(); }
  [[nodiscard]] FakeNcclHub& hub() { return hub_; }

  FakeStepFaults faults;
  FakeNcclOptions nccl{.one_process = true};  ///< the ranks of these sessions are threads
  std::string missing, no_nccl;
  int broken_gpu = -1;
  int visible_to_a_rank = 0;  ///< if not 0, the number of GPUs that a GPU says its process sees
  std::function<void(int gpu, const FakeCall&)> on_call;  ///< given to FakeRuntime as its callback of the same name
  std::function<void(int gpu)> on_launch, on_capture;     ///< given to FakeRuntime as its callbacks of the same names
  /// Given to FakeRuntime as its callback of the same name. The fake GPUs call it one after another.
  std::function<void(int gpu, std::chrono::nanoseconds wait)> on_timer;
  models::CudnnOptions asked;  ///< the options with which rank 0's step was made
  int asked_threads = 0;       ///< the threads that may compile kernels for this step

 private:
  FakeWorld world_;
  FakeNcclHub hub_;
  gpu::DeviceList list_;
  Mutex mutex_;
  std::vector<std::weak_ptr<FakeNccl>> libraries_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd::test
