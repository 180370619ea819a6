// Turns the signals that ask a program to stop into values. The signals are SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2
// and SIGXCPU, except signals that the parent process ignored. They are blocked in every thread, and one thread waits
// for them, so that no code runs in a signal handler.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "engine/base/mutex.h"

namespace hvd::bench {

/// Returns true for signals that announce the end of the job: those of Slurm's --signal, of LSF's -wa, and of the soft
/// limit on CPU time.
bool is_announcement(int signal_number);

class SignalWatch {
 public:
  struct Callbacks {
    /// Returns how long the program may take to stop by itself after the signal.
    std::function<std::chrono::milliseconds(int signal_number)> grace;
    /// Called on the watching thread, at most once, when the grace time is over or a second signal has come.
    /// `reason`: "SIGTERM", or "SIGINT, twice".
    std::function<void(const std::string& reason)> overdue;
  };

  /// Blocks the signals in the calling thread and in all threads that it starts later. Call block() first in main().
  static void block();

  /// Errors: io if the kernel refuses to create the descriptors.
  explicit SignalWatch(Callbacks callbacks);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Returns the name of the first signal that came, or "". Any thread may call it.
  [[nodiscard]] std::string requested() const;
  /// Waits at most `time` for a signal. Returns true if a signal has come.
  [[nodiscard]] bool wait(std::chrono::milliseconds time) const;

 private:
  void watch();
  void note(int signal_number);

  Callbacks callbacks_;
  int signals_ = -1;  // signalfd
  int wake_ = -1;     // eventfd with which the destructor wakes the thread
  mutable Mutex mutex_;
  mutable CondVar arrived_;
  std::string requested_ HVD_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace hvd::bench
