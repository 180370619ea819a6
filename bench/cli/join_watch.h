// A deadline for what MPI does before the ranks can talk and after they have: starting and finalising wait for every
// process of the launch, and know no deadline of their own.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "engine/base/deadline.h"
#include "engine/base/mutex.h"

namespace hvd::bench {

class JoinWatch {
 public:
  /// `overdue` is called on a thread of its own, at most once, when an armed deadline has passed. It has to end the
  /// process: the waiting thread cannot be woken.
  explicit JoinWatch(std::function<void()> overdue);
  ~JoinWatch();
  JoinWatch(const JoinWatch&) = delete;
  JoinWatch& operator=(const JoinWatch&) = delete;

  /// Any thread; the last call counts.
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

/// How long the ranks may take to leave MPI's world, which is more than one wait.
Patience patience_to_leave(const Options& options);

}  // namespace hvd::bench
