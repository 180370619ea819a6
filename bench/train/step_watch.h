// Finds a step on the CPU that never ends: a thread that hangs in OpenMP, in a primitive or in the system. The engine's
// waits for other ranks have deadlines of their own, so the watch covers what a rank computes by itself, and no time
// between steps.
//
// The training thread owns a StepWatch and makes all calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// The parts of a step that a StepWatch covers.
enum class StepPart : std::uint8_t { kNone, kBackward, kUpdate };

/// Adds up for how long the same part of the same step has run. The caller says how much time has passed.
class PartTimer {
 public:
  /// Call it at regular times. `running`: the part that runs now, as StepWatch encodes it; `passed`: the time since
  /// the last call. Returns the time for which the part has run at least.
  std::chrono::milliseconds observe(std::uint64_t running, std::chrono::milliseconds passed);

 private:
  std::uint64_t last_ = 0;
  std::chrono::milliseconds time_{0};
};

class StepWatch {
 public:
  /// When a part of a step takes too long, a thread calls `overdue`, at most once, with an Error of code timeout.
  /// `overdue` has to end the process. If `overdue` is null, there is no thread.
  StepWatch(const comm::Topology& world, Patience patience, std::function<void(const Error&)> overdue);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  void set_patience(Patience patience);
  /// A step has ended, and took `duration`.
  void ended(Clock::duration duration);

  /// A part of `step` runs while this object exists.
  class Running {
   public:
    Running(StepWatch& watch, std::uint64_t step, StepPart part) : running_(watch.running_) {
      running_.store(kParts * step + static_cast<std::uint64_t>(part), std::memory_order_relaxed);
    }
    ~Running() { running_.store(0, std::memory_order_relaxed); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    std::atomic<std::uint64_t>& running_;
  };

  /// Returns the time that a part of a step may take: `patience`, or 20 times the longest step so far if that is more.
  /// With several ranks, the other ranks find a rank that hangs after `patience`, and tell more about it. So the watch
  /// waits twice as long. It ends ranks that are threads of one process, and ranks that all hang.
  static std::chrono::milliseconds limit(std::chrono::milliseconds patience, Clock::duration longest_step, int ranks);

 private:
  static constexpr std::uint64_t kParts = 4;  // the parts, rounded up

  void watch();
  [[nodiscard]] Error fault(std::uint64_t running, std::chrono::milliseconds limit, const char* set_by) const;

  const comm::Topology& world_;
  const std::function<void(const Error&)> overdue_;
  std::atomic<std::uint64_t> running_ = 0;  // kParts * step + part; 0 if the watch does not cover what runs now
  std::atomic<Clock::duration> longest_{Clock::duration::zero()};
  Mutex mutex_;
  CondVar changed_;
  Patience patience_ HVD_GUARDED_BY(mutex_);
  bool ended_ HVD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace hvd::bench
