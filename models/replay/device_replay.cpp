#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/align.h"
#include "models/replay/replay.h"
#include "models/replay/replay_base.h"

namespace hvd::models {
namespace {

constexpr std::chrono::seconds kHostTimeout{60};  // limit of waits outside a training loop
// The device memory with which gradients are filled: 28 MiB in fp32. Only longer gradients take several copies.
constexpr std::size_t kMaxPatternElements = kReplayPeriod << 20U;

std::chrono::nanoseconds to_nanoseconds(double seconds) {
  return std::chrono::round<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

void require_short_waits(const ReplayProfile& profile) {
  const std::vector<double>& factors = profile.factors;
  const double slowest = factors.empty() ? 1 : *std::max_element(factors.begin(), factors.end());
  double before = 0;
  const auto require = [&](const std::string& what, double wait) {
    if (std::chrono::duration<double>(wait) <= gpu::kMaxTimerWait) return;
    throw Error(Errc::kUnsupported,
                fmt::format("replay of {} on a GPU: {} takes {:.3g} s in the slowest step, and a timer on a GPU waits "
                            "{} ms at most; replay it on the CPU (leave --device out)",
                            profile.model, what, wait, gpu::kMaxTimerWait.count()));
  };
  for (const ReplayProfile::Gradient& gradient : profile.gradients) {
    require(fmt::format("what comes before gradient {}", gradient.name), slowest * (gradient.ready_seconds - before));
    before = std::max(before, gradient.ready_seconds);
  }
  require("the end of backward", slowest * (profile.backward_end_seconds - before));
  require("the update", profile.update_seconds);
}

class DeviceReplayStep final : public ReplayBase<DeviceStep> {
 public:
  DeviceReplayStep(ReplayProfile profile, DataType gradient, gpu::GpuRuntime& runtime, const ArenaAllocator& allocate,
                   int rank, std::function<bool()> paced)
      : ReplayBase(std::move(profile), gradient, allocate, rank),
        runtime_(runtime),
        paced_(std::move(paced)),
        stream_(runtime.make_stream(gpu::Priority::kNormal)) {
    for (gpu::Event& event : copied_) event = runtime.make_event(gpu::Timing::kOff);
    std::size_t longest = 0;
    for (const ArenaSlot& slot : slots()) longest = std::max(longest, slot.count);
    pattern_elements_ = std::min(align_up(longest, kReplayPeriod), kMaxPatternElements);
    pattern_ = to_device(pattern(pattern_elements_), "the values of the gradients");
    const std::array<gpu::DeviceTimer, 2> timers{};
    timers_ = to_device(std::as_bytes(std::span(timers)), "timers");
    factors_ = runtime.allocate_pinned(kFactors * sizeof(double), "the factors of steps");
  }
  DeviceReplayStep(const DeviceReplayStep&) = delete;
  DeviceReplayStep& operator=(const DeviceReplayStep&) = delete;
  ~DeviceReplayStep() override { runtime_.drain(stream_); }

  [[nodiscard]] gpu::StreamView compute_stream() const override { return stream_; }

  void load(const Batch& /*batch*/, Deadline deadline) override {
    next_ = (next_ + 1) % kFactors;
    runtime_.synchronize(copied_.at(next_).view(), deadline, "the factor of an earlier step");
    std::byte* const factor = &factors_->bytes[next_ * sizeof(double)];
    step_factor_ = take_factor();
    std::memcpy(factor, &step_factor_, sizeof step_factor_);
    runtime_.copy(&backward_timer()->factor, factor, sizeof step_factor_, stream_);
    runtime_.record(copied_.at(next_), stream_);
  }
  void set_sgd(const SgdOptions& /*options*/) override {}

  void enqueue_forward_backward(GradientSink& sink) override {
    const auto begin = Clock::now();
    const bool paced = paced_ && paced_();
    runtime_.start_timer(backward_timer(), stream_);
    for (std::size_t i = 0; i < slots().size(); ++i) {
      const ReplayProfile::Gradient& its = recorded().gradients[i];
      if (paced && its.submit_seconds != its.ready_seconds) {
        std::this_thread::sleep_until(begin + to_duration(step_factor_ * its.submit_seconds));
      }
      fill(i, pattern_elements_, [this](std::byte* to, std::size_t from, std::size_t bytes) {
        runtime_.copy(to, &pattern_->bytes[from], bytes, stream_);
      });
      runtime_.await_timer(backward_timer(), to_nanoseconds(its.ready_seconds), stream_);
      sink.gradient_ready(i);
    }
    runtime_.await_timer(backward_timer(), to_nanoseconds(recorded().backward_end_seconds), stream_);
  }

  void enqueue_update() override {
    runtime_.start_timer(update_timer(), stream_);
    runtime_.await_timer(update_timer(), to_nanoseconds(recorded().update_seconds), stream_);
  }

  void keep_loss_in(std::size_t /*place*/) override {}
  [[nodiscard]] double loss(std::size_t /*place*/) const override { return 0; }  // a replay computes nothing

  double forward_backward(const Batch& batch, GradientSink& sink) override {
    load(batch, Deadline::after(kHostTimeout));
    enqueue_forward_backward(sink);
    wait("forward and backward");
    return 0;
  }
  void update(const SgdOptions& /*options*/) override { enqueue_update(); }

  void read_gradient(std::size_t parameter, std::span<float> out) override {
    require_gradient(parameter, out.size());
    const std::span<std::byte> from = gradient(parameter);
    const gpu::PinnedMemory here = runtime_.allocate_pinned(from.size(), "a gradient to read");
    runtime_.copy(here->bytes.data(), from.data(), from.size(), stream_);
    wait("a gradient to read");
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(models::load(gradient_type(), here->bytes, i));
    }
  }

  [[nodiscard]] MemoryReport memory() const override {
    MemoryReport report;
    report.gradients = gradient_bytes();
    report.workspace = pattern_->bytes.size() + timers_->bytes.size();
    return report;
  }
  [[nodiscard]] std::string description() const override { return ReplayBase::description() + " by timers on a GPU"; }

 private:
  static constexpr std::size_t kFactors = kLossPlaces;  // as many steps may be in flight

  [[nodiscard]] gpu::DeviceTimer* backward_timer() const {
    return reinterpret_cast<gpu::DeviceTimer*>(timers_->bytes.data());
  }
  /// The update has a timer of its own, whose factor stays 1.
  [[nodiscard]] gpu::DeviceTimer* update_timer() const { return backward_timer() + 1; }

  void wait(std::string_view what) { runtime_.synchronize(stream_.view(), Deadline::after(kHostTimeout), what); }

  gpu::DeviceMemory to_device(std::span<const std::byte> bytes, std::string_view what) {
    gpu::DeviceMemory there = runtime_.allocate(bytes.size(), what);
    const gpu::PinnedMemory here = runtime_.allocate_pinned(bytes.size(), what);
    std::memcpy(here->bytes.data(), bytes.data(), bytes.size());
    runtime_.copy(there->bytes.data(), here->bytes.data(), bytes.size(), stream_);
    wait(what);
    return there;
  }

  gpu::GpuRuntime& runtime_;
  const std::function<bool()> paced_;
  gpu::Stream stream_;
  std::size_t pattern_elements_ = 0;
  gpu::DeviceMemory pattern_, timers_;
  gpu::PinnedMemory factors_;                // [turn] of steps
  std::array<gpu::Event, kFactors> copied_;  // [turn]: the factor has left factors_
  std::size_t next_ = 0;                     // turn of the last load()
  double step_factor_ = 1;                   // that it gave
};

}  // namespace

std::unique_ptr<DeviceStep> make_device_replay_step(ReplayProfile profile, DataType gradient, gpu::GpuRuntime& runtime,
                                                    const ArenaAllocator& allocate, int rank,
                                                    std::function<bool()> paced) {
  if (const std::string why = runtime.scale_refusal(); !why.empty()) {
    throw Error(Errc::kUnsupported, fmt::format("{}: replay of {}: {}", runtime.label(), profile.model, why));
  }
  require_short_waits(profile);
  return std::make_unique<DeviceReplayStep>(std::move(profile), gradient, runtime, allocate, rank, std::move(paced));
}

}  // namespace hvd::models
