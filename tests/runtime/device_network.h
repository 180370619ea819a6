// A network of kernels on a fake GPU for tests of DeviceEngine, and the weights that it must have after some steps.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "engine/runtime/device_engine.h"
#include "tests/base/patience.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/runtime/ranks.h"

namespace hvd::test {

inline constexpr std::size_t kGradients = 12;

/// A network of kernels. Each step writes gradients that depend on rank and step, and adds the reduced gradients to the
/// parameters. The step number is kept on the device, because a captured step would use the same number from the
/// host in every launch.
class Network {
 public:
  Network(GpuRank& rank, DeviceEngine& engine)
      : rank_(rank),
        engine_(engine),
        gradients_(make_gradients(kGradients)),
        arena_(engine.engine().allocate(arena_elements(gradients_) * sizeof(float))),
        stream_(rank.gpu.make_stream(gpu::Priority::kNormal)),
        parameters_(rank.gpu.allocate(arena_.size(), "parameters")),
        step_(rank.gpu.allocate(sizeof(std::uint64_t), "step number")) {
    rank.gpu.fill(parameters_->bytes.data(), std::byte{0}, arena_.size(), stream_);
    rank.gpu.fill(step_->bytes.data(), std::byte{0}, sizeof(std::uint64_t), stream_);
    engine.set_gradients(gradients_, arena_.data(), DataType::kF32, ReduceOp::kSum);
    order_.resize(kGradients);
    std::iota(order_.begin(), order_.end(), 0U);
  }

  [[nodiscard]] DeviceEngine::Work work() {
    return {[this] { forward_backward(); }, [this] { update(); }};
  }
  DeviceReport step() {
    launch();
    return engine_.finish_step();
  }
  void launch() { engine_.run_step(stream_, work()); }
  /// Runs `count` steps. Launches each step as early as the engine allows.
  std::vector<DeviceReport> steps_ahead(int count) {
    std::vector<DeviceReport> reports;
    for (int launched = 0; launched < count || engine_.in_flight() > 0;) {
      if (launched < count && (engine_.in_flight() == 0 || engine_.may_run_ahead())) {
        launch();
        ++launched;
      } else {
        reports.push_back(engine_.finish_step());
      }
    }
    return reports;
  }
  /// Returns the parameters. Call only when the GPU has no unfinished work.
  [[nodiscard]] std::vector<float> parameters() const {
    std::vector<float> values(arena_.size() / sizeof(float));
    std::memcpy(values.data(), parameters_->bytes.data(), arena_.size());
    return values;
  }
  [[nodiscard]] const std::vector<core::GradientInfo>& gradients() const { return gradients_; }

  std::vector<std::size_t> order_;      ///< order in which backward makes the gradients
  std::size_t forgotten_ = kGradients;  ///< index of a gradient that is never marked ready; kGradients: none
  std::size_t premature_ = kGradients;  ///< index of a gradient wrongly marked ready before its work is enqueued
  bool unjoined_ = false;               ///< if true, backward does not join its second stream
  std::function<void(std::size_t)> before_gradient_;

 private:
  void forward_backward() {
    for (const std::size_t i : order_) {
      if (before_gradient_) before_gradient_(i);
      if (i == premature_) engine_.gradient_ready(i);
      const std::span<std::byte> slot =
          arena_.subspan(gradients_[i].offset * sizeof(float), gradients_[i].count * sizeof(float));
      rank_.gpu.kernel(stream_, "backward " + std::to_string(i), {step_->bytes}, {slot}, [this, i, slot] {
        rank_.hub.note("rank " + std::to_string(rank_.rank) + " backward " + std::to_string(i));
        std::uint64_t step = 0;
        std::memcpy(&step, step_->bytes.data(), sizeof step);
        for (std::size_t k = 0; k < gradients_[i].count; ++k) {
          const float value = contribution(rank_.rank, step, gradients_[i].offset + k);
          std::memcpy(&slot[k * sizeof value], &value, sizeof value);
        }
      });
      if (i != forgotten_ && i != premature_) engine_.gradient_ready(i);
    }
    if (!unjoined_) return;
    side_ = rank_.gpu.make_stream(gpu::Priority::kNormal);
    fork_ = rank_.gpu.make_event(gpu::Timing::kOff);
    rank_.gpu.record(fork_, stream_);
    rank_.gpu.wait(side_, fork_);
    rank_.gpu.kernel(side_, "stray", {}, {}, [] {});
  }
  void update() {
    rank_.gpu.kernel(stream_, "update", {arena_}, {parameters_->bytes, step_->bytes}, [this] {
      for (const core::GradientInfo& gradient : gradients_) {
        for (std::size_t k = gradient.offset; k < gradient.offset + gradient.count; ++k) {
          float parameter = 0, value = 0;
          std::memcpy(&parameter, &parameters_->bytes[k * sizeof value], sizeof value);
          std::memcpy(&value, &arena_[k * sizeof value], sizeof value);
          parameter += value;
          std::memcpy(&parameters_->bytes[k * sizeof value], &parameter, sizeof value);
        }
      }
      std::uint64_t step = 0;
      std::memcpy(&step, step_->bytes.data(), sizeof step);
      ++step;
      std::memcpy(step_->bytes.data(), &step, sizeof step);
    });
  }

  GpuRank& rank_;
  DeviceEngine& engine_;
  std::vector<core::GradientInfo> gradients_;
  std::span<std::byte> arena_;
  gpu::Stream stream_;
  gpu::DeviceMemory parameters_, step_;
  gpu::Stream side_;
  gpu::Event fork_;
};

inline EngineOptions small_buckets(Schedule schedule, std::chrono::milliseconds deadline = kNever) {
  EngineOptions options;
  options.schedule = schedule;
  options.deadline = deadline;
  options.buckets = {.bucket_bytes = 600, .first_bucket_bytes = 200};
  options.negotiation.fusion.threshold_bytes = 900;
  return options;
}

inline std::vector<float> expected_parameters(int size, int steps, const std::vector<core::GradientInfo>& gradients) {
  std::vector<float> values(arena_elements(gradients), 0.0F);
  for (const core::GradientInfo& gradient : gradients) {
    for (std::size_t k = gradient.offset; k < gradient.offset + gradient.count; ++k) {
      for (int step = 0; step < steps; ++step) values[k] += expected_sum(size, static_cast<std::uint64_t>(step), k);
    }
  }
  return values;
}

}  // namespace hvd::test
