// std::mutex and std::condition_variable with clang's thread-safety annotations, so that
// -Wthread-safety checks which lock guards which field. Annotations are empty on other compilers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HVD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define HVD_THREAD_ANNOTATION(x)
#endif
#define HVD_CAPABILITY(x) HVD_THREAD_ANNOTATION(capability(x))
#define HVD_SCOPED_CAPABILITY HVD_THREAD_ANNOTATION(scoped_lockable)
#define HVD_GUARDED_BY(x) HVD_THREAD_ANNOTATION(guarded_by(x))
#define HVD_REQUIRES(...) HVD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define HVD_EXCLUDES(...) HVD_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define HVD_ACQUIRE(...) HVD_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define HVD_RELEASE(...) HVD_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define HVD_NO_THREAD_SAFETY_ANALYSIS HVD_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace hvd {

class HVD_CAPABILITY("mutex") Mutex {
 public:
  void lock() HVD_ACQUIRE() { mutex_.lock(); }
  void unlock() HVD_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class HVD_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HVD_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() HVD_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// The caller of a wait holds the mutex; the wait releases it while it sleeps. A wait may return early, so the caller
/// repeats it until the caller's own condition is true.
class CondVar {
 public:
  void wait(Mutex& mutex) HVD_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  /// Returns false when `until` has passed.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point until) HVD_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace hvd
