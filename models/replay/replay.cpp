#include "models/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "models/replay/replay_base.h"

namespace hvd::models {
namespace {

double median(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  if (values.size() % 2 == 1) return values[middle];
  const double above = values[middle];
  return (*std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle)) + above) / 2;
}

class ReplayStep final : public ReplayBase<TrainStep>, public ShardedUpdate {
 public:
  ReplayStep(ReplayProfile profile, DataType gradient, const ArenaAllocator& allocate, int rank)
      : ReplayBase(std::move(profile), gradient, allocate, rank), pattern_(pattern(kPatternElements)) {}

  double forward_backward(const Batch& /*batch*/, GradientSink& sink) override {
    const auto start = Clock::now();
    const double factor = take_factor();
    for (std::size_t i = 0; i < slots().size(); ++i) {
      fill(i, kPatternElements,
           [this](std::byte* to, std::size_t from, std::size_t bytes) { std::memcpy(to, &pattern_[from], bytes); });
      std::this_thread::sleep_until(start + to_duration(factor * recorded().gradients[i].ready_seconds));
      sink.gradient_ready(i);
    }
    std::this_thread::sleep_until(start + to_duration(factor * recorded().backward_end_seconds));
    return 0;  // a replay computes nothing and has no loss
  }

  void update(const SgdOptions& /*options*/) override {
    std::this_thread::sleep_until(Clock::now() + to_duration(recorded().update_seconds));
  }

  ShardedUpdate* sharded() override { return this; }
  void keep_momentum(std::span<const ArenaRange> /*share*/) override {}
  // Sleeps for a part of the recorded update time, in proportion to the size of `share`.
  void update_share(const SgdOptions& /*options*/, std::span<const ArenaRange> share) override {
    std::size_t elements = 0;
    for (const ArenaRange& range : share) elements += range.count;
    const double part =
        static_cast<double>(elements * size_of(gradient_type())) / static_cast<double>(gradient_arena().size());
    std::this_thread::sleep_until(Clock::now() + to_duration(recorded().update_seconds * part));
  }
  // Returns as many zero bytes as the weights have, so that gathering them moves as many bytes as in a real run.
  std::span<std::byte> weight_arena() override {
    weights_.resize(gradient_arena().size() / size_of(gradient_type()) * sizeof(float));
    return weights_;
  }
  [[nodiscard]] DataType weight_type() const override { return DataType::kF32; }

  void read_gradient(std::size_t parameter, std::span<float> out) override {
    require_gradient(parameter, out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(load(gradient_type(), gradient(parameter), i));
    }
  }

  [[nodiscard]] MemoryReport memory() const override {
    MemoryReport report;
    report.parameters = weights_.size();
    report.gradients = gradient_bytes();
    report.workspace = pattern_.size();
    return report;
  }

 private:
  static constexpr std::size_t kPatternElements = kReplayPeriod * 8192;

  std::vector<std::byte> pattern_;
  std::vector<std::byte> weights_;  // empty until weight_arena() is called
};

}  // namespace

double replay_gradient_value(std::size_t parameter, std::size_t element) noexcept {
  return (static_cast<double>((3 * parameter + element) % kReplayPeriod) - 3.0) / 4.0;
}

ReplayRecorder::ReplayRecorder(std::vector<ArenaSlot> slots, ReplayProfile header)
    : slots_(std::move(slots)),
      header_(std::move(header)),
      submit_(slots_.size()),
      ready_(slots_.size()),
      current_ready_(slots_.size()) {}

double ReplayRecorder::since_step_start() const {
  return std::chrono::duration<double>(Clock::now() - step_start_).count();
}

void ReplayRecorder::begin_step() {
  step_start_ = Clock::now();
  current_forward_ = 0;
}

void ReplayRecorder::end_forward() { current_forward_ = since_step_start(); }

void ReplayRecorder::gradient_ready(std::size_t parameter) { current_ready_.at(parameter) = since_step_start(); }

void ReplayRecorder::end_backward() { update_start_ = current_backward_end_ = since_step_start(); }

void ReplayRecorder::begin_update() { update_start_ = since_step_start(); }

void ReplayRecorder::end_update() {
  add({.submit = current_ready_,
       .ready = current_ready_,
       .backward_end = current_backward_end_,
       .update = since_step_start() - update_start_,
       .forward = current_forward_});
}

void ReplayRecorder::add(const Step& step) {
  if (step.submit.size() != slots_.size() || step.ready.size() != slots_.size()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("replay recorder of {}: {} and {} times for {} gradients", header_.model,
                            step.submit.size(), step.ready.size(), slots_.size()));
  }
  forward_.push_back(step.forward);
  update_.push_back(step.update);
  backward_end_.push_back(step.backward_end);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    submit_[i].push_back(step.submit[i]);
    ready_[i].push_back(step.ready[i]);
  }
}

ReplayProfile ReplayRecorder::profile() const {
  if (update_.empty()) {
    throw Error(Errc::kInvalidArgument, "replay recorder of " + header_.model + ": no complete step was recorded");
  }
  ReplayProfile profile = header_;
  profile.forward_seconds = median(forward_);
  profile.backward_end_seconds = median(backward_end_);
  profile.update_seconds = median(update_);
  profile.factors.clear();
  for (std::size_t i = 0; i < std::min(backward_end_.size(), kMaxFactors); ++i) {
    const double factor = backward_end_[i] / profile.backward_end_seconds;
    profile.factors.push_back(std::clamp(std::round(factor * 1e6) / 1e6, kMinFactor, kMaxFactor));
  }
  profile.gradients.clear();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    profile.gradients.push_back({.name = slots_[i].name,
                                 .count = slots_[i].count,
                                 .submit_seconds = median(submit_[i]),
                                 .ready_seconds = median(ready_[i])});
  }
  return profile;
}

ReplayProfile shrink_gradients(ReplayProfile profile, std::int64_t divisor) {
  if (divisor < 1) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("replay of {}: gradients cannot be divided by {}", profile.model, divisor));
  }
  if (divisor == 1) return profile;
  profile.model += fmt::format("-div{}", divisor);
  const auto parts = static_cast<std::size_t>(divisor);
  for (ReplayProfile::Gradient& gradient : profile.gradients) gradient.count = (gradient.count + parts - 1) / parts;
  return profile;
}

std::size_t first_factor(int rank, std::size_t factors) noexcept {
  constexpr double kGoldenRatio = 0.6180339887498949;
  const double turns = kGoldenRatio * rank;
  return static_cast<std::size_t>((turns - std::floor(turns)) * static_cast<double>(factors));
}

std::unique_ptr<TrainStep> make_replay_step(ReplayProfile profile, DataType gradient, const ArenaAllocator& allocate,
                                            int rank) {
  return std::make_unique<ReplayStep>(std::move(profile), gradient, allocate, rank);
}

}  // namespace hvd::models
