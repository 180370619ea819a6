#include "bench/cli/mpi_deadline.h"

#include <algorithm>
#include <utility>

namespace hvd::bench {

MpiDeadline::MpiDeadline(std::function<void()> overdue) : overdue_(std::move(overdue)), thread_([this] { watch(); }) {}

MpiDeadline::~MpiDeadline() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void MpiDeadline::arm(std::chrono::milliseconds patience) {
  {
    const MutexLock lock(mutex_);
    deadline_ = Deadline::after(patience);
  }
  changed_.notify_one();
}

void MpiDeadline::disarm() {
  {
    const MutexLock lock(mutex_);
    deadline_.reset();
  }
  changed_.notify_one();
}

void MpiDeadline::watch() {
  {
    const MutexLock lock(mutex_);
    while (!ended_ && !(deadline_ && deadline_->passed())) {
      if (deadline_) {
        changed_.wait_until(mutex_, deadline_->when());
      } else {
        changed_.wait(mutex_);
      }
    }
    if (ended_) return;
  }
  overdue_();
}

Patience patience_to_leave(Patience deadline) {
  constexpr std::chrono::milliseconds kLeast(30000);
  return {std::max(kLeast, 3 * deadline.timeout), deadline.set_by};
}

}  // namespace hvd::bench
