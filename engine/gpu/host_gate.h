// A place in a stream where the GPU waits for the host: everything before it is over when it is reached, and nothing
// behind it begins before it is opened. Made by the host, put on a stream by Runtime::hold(), shared by both.
//
// Threads: any. Who makes a gate sees to it that it is opened, also when things go wrong: nothing else ends the wait
// of the stream.
#pragma once

#include "engine/base/mutex.h"

namespace hvd::gpu {

class HostGate {
 public:
  /// The GPU's side: the stream has got here.
  void reach() {
    const MutexLock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
  }
  /// Sleeps until open(), which has no deadline of its own: see above.
  void await_open() {
    const MutexLock lock(mutex_);
    while (!open_) changed_.wait(mutex_);
  }
  [[nodiscard]] bool is_open() {
    const MutexLock lock(mutex_);
    return open_;
  }

  /// The host's side: whether the stream gets here before `until`.
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
