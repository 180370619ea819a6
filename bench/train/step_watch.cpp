#include "bench/train/step_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bench/measure/units.h"

namespace hvd::bench {
namespace {

using std::chrono::milliseconds;

constexpr int kTimesLongest = 20;

double seconds(std::chrono::duration<double> time) { return time.count(); }

}  // namespace

milliseconds PartTimer::observe(std::uint64_t running, milliseconds passed) {
  time_ = running != 0 && running == last_ ? time_ + passed : milliseconds(0);
  last_ = running;
  return time_;
}

StepWatch::StepWatch(const comm::Topology& world, Patience patience, std::function<void(const Error&)> overdue)
    : world_(world), overdue_(std::move(overdue)), patience_(patience) {
  if (overdue_) thread_ = std::thread([this] { watch(); });
}

StepWatch::~StepWatch() {
  if (!overdue_) return;
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StepWatch::set_patience(Patience patience) {
  const MutexLock lock(mutex_);
  patience_ = patience;
}

void StepWatch::ended(Clock::duration duration) {
  if (duration > longest_.load(std::memory_order_relaxed)) longest_.store(duration, std::memory_order_relaxed);
}

milliseconds StepWatch::limit(milliseconds patience, Clock::duration longest_step, int ranks) {
  return std::max(ranks > 1 ? 2 * patience : patience,
                  std::chrono::duration_cast<milliseconds>(kTimesLongest * longest_step));
}

// The thread adds up its own naps instead of reading the clock. So a time in which the whole process or machine is
// stopped counts as one nap, and a rank is not ended when it continues.
void StepWatch::watch() {
  PartTimer timer;
  std::uint64_t running = 0;
  milliseconds allowed{0};
  const char* set_by = nullptr;
  {
    const MutexLock lock(mutex_);
    for (;;) {
      const milliseconds nap = std::clamp(patience_.timeout / 16, milliseconds(1), milliseconds(1000));
      const Clock::time_point until = Clock::now() + nap;
      while (!ended_ && changed_.wait_until(mutex_, until)) {
      }
      if (ended_) return;
      running = running_.load(std::memory_order_relaxed);
      allowed = limit(patience_.timeout, longest_.load(std::memory_order_relaxed), world_.size);
      set_by = patience_.set_by;
      if (timer.observe(running, nap) >= allowed) break;
    }
  }
  overdue_(fault(running, allowed, set_by));
}

Error StepWatch::fault(std::uint64_t running, milliseconds limit, const char* set_by) const {
  const Clock::duration longest = longest_.load(std::memory_order_relaxed);
  const std::string before = longest == Clock::duration::zero()
                                 ? "no step has ended before"
                                 : fmt::format("the longest step before took {:.3g} s", seconds(longest));
  return {Errc::kTimeout,
          fmt::format(
              "{}: {} of step {} did not end within {}; {}; find out what blocks it (OpenMP's threads, oneDNN, "
              "the file system), or raise {}",
              comm::rank_at(static_cast<std::size_t>(world_.rank), world_.hosts),
              running % kParts == static_cast<std::uint64_t>(StepPart::kUpdate) ? "the update" : "forward and backward",
              running / kParts, duration_text(seconds(limit)), before, set_by)};
}

}  // namespace hvd::bench
