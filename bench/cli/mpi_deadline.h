// A deadline for MPI_Init and MPI_Finalize. These calls wait for every process of the launch and have no deadline of
// their own.
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
  /// This object's own thread calls `overdue`, at most once, when an armed deadline has passed. `overdue` must end the
  /// process, because the thread that waits in MPI cannot be woken.
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

/// Returns the time limit for leaving MPI's world: three times the deadline of one wait, and at least 30 s.
Patience patience_to_leave(Patience deadline);

}  // namespace hvd::bench
