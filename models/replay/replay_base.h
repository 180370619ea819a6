// The base of the steps that replay a profile, on a CPU (replay.cpp) or on a GPU (device_replay.cpp): the gradients and
// their values, the factors of successive steps, and what a replay lacks. Used in this folder only.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "models/replay/replay.h"
#include "models/train_step.h"

namespace hvd::models {

/// The period of replay_gradient_value() along a gradient.
inline constexpr std::size_t kReplayPeriod = 7;

inline Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// `Step` is TrainStep or DeviceStep.
template <class Step>
class ReplayBase : public Step {
 public:
  [[nodiscard]] std::span<const ArenaSlot> slots() const final { return slots_; }
  [[nodiscard]] DataType gradient_type() const final { return type_; }
  [[nodiscard]] std::span<std::byte> gradient_arena() final { return gradients_; }
  [[nodiscard]] std::vector<std::span<std::byte>> state_to_broadcast() final { return {}; }
  void state_changed() final {}
  void read_parameter(std::size_t /*parameter*/, std::span<float> /*out*/) final { no_weights(); }
  void write_parameter(std::size_t /*parameter*/, std::span<const float> /*in*/) final { no_weights(); }
  [[nodiscard]] std::vector<OperationProfile> profile() const final { return {}; }
  [[nodiscard]] std::string description() const override {
    return fmt::format("replay of run {} ({}, {}, {})", profile_.source_run, profile_.model, profile_.compute_type,
                       profile_.device);
  }

 protected:
  ReplayBase(ReplayProfile profile, DataType gradient, const ArenaAllocator& allocate, int rank)
      : profile_(std::move(profile)), type_(gradient), next_factor_(first_factor(rank, profile_.factors.size())) {
    require_floating(gradient);
    if (profile_.gradients.empty()) {
      throw Error(Errc::kInvalidArgument, fmt::format("replay of {}: the profile has no gradients", profile_.model));
    }
    std::size_t offset = 0;
    for (const ReplayProfile::Gradient& entry : profile_.gradients) {
      slots_.push_back({.name = entry.name,
                        .offset = offset,
                        .count = entry.count,
                        .shape = Shape{static_cast<std::int64_t>(entry.count)}});
      offset += entry.count;
    }
    gradients_ = allocate(offset * size_of(type_));
  }

  [[nodiscard]] const ReplayProfile& recorded() const { return profile_; }

  double take_factor() {
    if (profile_.factors.empty()) return 1;
    const double factor = profile_.factors[next_factor_];
    next_factor_ = (next_factor_ + 1) % profile_.factors.size();
    return factor;
  }

  [[nodiscard]] std::size_t gradient_bytes() const { return gradients_.size(); }
  /// Returns the memory of a gradient.
  [[nodiscard]] std::span<std::byte> gradient(std::size_t parameter) const {
    const std::size_t element = size_of(type_);
    return gradients_.subspan(slots_[parameter].offset * element, slots_[parameter].count * element);
  }

  /// Returns a long piece of the pattern, with which fill() needs only a few large copies for a gradient. `elements` is
  /// a multiple of kReplayPeriod. The piece is one period longer, so that it can begin anywhere in the first period.
  [[nodiscard]] std::vector<std::byte> pattern(std::size_t elements) const {
    std::vector<double> values(elements + kReplayPeriod);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = replay_gradient_value(0, i);
    std::vector<std::byte> bytes(values.size() * size_of(type_));
    store(type_, values, bytes);
    return bytes;
  }

  /// Fills a gradient by calls of copy(to, from, bytes), where `from` counts bytes from the start of pattern(elements).
  /// Called in each step, because the previous step's reduction replaced the values by sums.
  template <class Copy>
  void fill(std::size_t parameter, std::size_t elements, const Copy& copy) const {
    // replay_gradient_value(p, i) == replay_gradient_value(0, i + 3p)
    const std::size_t from = 3 * parameter % kReplayPeriod * size_of(type_);
    for (std::span<std::byte> left = gradient(parameter); !left.empty();) {
      const std::size_t bytes = std::min(left.size(), elements * size_of(type_));
      copy(left.data(), from, bytes);
      left = left.subspan(bytes);
    }
  }

  /// Checks the arguments of read_gradient().
  void require_gradient(std::size_t parameter, std::size_t elements) const {
    if (parameter < slots_.size() && slots_[parameter].count == elements) return;
    throw Error(Errc::kInvalidArgument,
                fmt::format("replay of {}: no gradient {} of {} elements", profile_.model, parameter, elements));
  }

 private:
  [[noreturn]] void no_weights() const {
    throw Error(Errc::kUnsupported, "replay of " + profile_.model + " has no weights; it plays back times only");
  }

  ReplayProfile profile_;
  DataType type_;
  std::size_t next_factor_;
  std::vector<ArenaSlot> slots_;
  std::span<std::byte> gradients_;  // memory from the allocator
};

}  // namespace hvd::models
