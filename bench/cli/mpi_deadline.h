// A deadline for starting and finalising MPI, before and after the ranks can talk to one another. Both calls wait for
// every process of the launch and have no deadline of their own.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "engine/base/deadline.h"
#include "engine/base/mutex.h"

namespace hvd::bench {

class MpiDeadline {
 public:
  /// `overdue` is called on a thread of its own, at most once, when an armed deadline has passed. It must end the
  /// process, because the waiting thread cannot be woken.
  explicit MpiDeadline(std::function<void()> overdue);
  ~MpiDeadline();
  MpiDeadline(const MpiDeadline&) = delete;
  MpiDeadline& operator=(const MpiDeadline&) = delete;

  /// Sets the deadline, replacing an earlier one. Any thread may call it.
  void arm(std::chrono::milliseconds patience);
  void disarm();

 private:
  void watch();

  const std::function<void()> overdue_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Deadline> deadline_ HVD_GUARDED_BY(mutex_);
  bool ended_ HVD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// Time limit for leaving MPI's world, which takes longer than a single wait.
Patience patience_to_leave(const Options& options);

}  // namespace hvd::bench
