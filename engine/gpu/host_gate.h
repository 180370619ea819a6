// A gate is a point in a stream where the GPU waits for the host. The stream reaches the gate when all earlier work is
// finished, and starts later work only after the host has opened the gate. The host makes the gate and puts it on a
// stream with GpuRuntime::hold(). The host and the stream share ownership of the gate.
//
// Any thread may call any method. Whoever makes a gate must open it, even after an error: nothing else ends the wait.
#pragma once

#include "engine/base/mutex.h"

namespace hvd::gpu {

class HostGate {
 public:
  /// Called by the GpuRuntime when the stream reaches the gate.
  void reach() {
    const MutexLock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
  }
  /// Called by the GpuRuntime after reach(). Sleeps until open(), without a deadline.
  void await_open() {
    const MutexLock lock(mutex_);
    while (!open_) changed_.wait(mutex_);
  }
  [[nodiscard]] bool is_open() {
    const MutexLock lock(mutex_);
    return open_;
  }

  /// Called by the host. Returns true if the stream reaches the gate before `until`.
  bool await_reached(std::chrono::steady_clock::time_point until) {
    const MutexLock lock(mutex_);
    while (!reached_) {
      if (!changed_.wait_until(mutex_, until)) return reached_;
    }
    return true;
  }
  void open() noexcept {
    const MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool reached_ HVD_GUARDED_BY(mutex_) = false;
  bool open_ HVD_GUARDED_BY(mutex_) = false;
};

}  // namespace hvd::gpu
