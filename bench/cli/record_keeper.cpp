#include "bench/cli/record_keeper.h"

#include <exception>
#include <utility>

#include "engine/base/error.h"

namespace hvd::bench {

/// The exclusive right to use the store. Unlike the wait for a mutex, the wait for a Turn can end at a deadline.
class RecordKeeper::Turn {
 public:
  /// Waits without limit if `until` is null, otherwise until that deadline. Then taken() says whether the wait
  /// succeeded.
  Turn(RecordKeeper& keeper, const Deadline* until) : keeper_(keeper) {
    const MutexLock lock(keeper_.mutex_);
    while (keeper_.busy_) {
      if (until == nullptr) {
        keeper_.turn_ended_.wait(keeper_.mutex_);
      } else if (!keeper_.turn_ended_.wait_until(keeper_.mutex_, until->when())) {
        return;
      }
    }
    keeper_.busy_ = taken_ = true;
  }
  ~Turn() {
    if (!taken_) return;
    const MutexLock lock(keeper_.mutex_);
    keeper_.busy_ = false;
    keeper_.turn_ended_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  [[nodiscard]] bool taken() const { return taken_; }
  [[nodiscard]] bool closed() const {
    const MutexLock lock(keeper_.mutex_);
    return keeper_.closed_;
  }

 private:
  RecordKeeper& keeper_;
  bool taken_ = false;
};

RecordKeeper::RecordKeeper(std::unique_ptr<ResultStore> store, std::function<void(std::string_view)> warn)
    : store_(std::move(store)), warn_(std::move(warn)) {}

void RecordKeeper::save_pending() {
  for (auto it = unsaved_.begin(); it != unsaved_.end(); it = unsaved_.erase(it)) {
    store_->save(it->second);
    saved_any_ = true;
  }
}

void RecordKeeper::save(const RunRecord& run) {
  if (!store_) return;
  const Turn turn(*this, nullptr);
  if (turn.closed()) return;
  unsaved_.erase(run.uuid);  // `run` replaces this older record
  try {
    save_pending();
    store_->save(run);
    saved_any_ = true;
  } catch (const Error& error) {
    unsaved_.insert_or_assign(run.uuid, run);
    if (!saved_any_) throw;
    if (!std::exchange(warned_, true))
      warn_(std::string(error.what()) + "; measuring goes on, and so do attempts to save");
  }
}

void RecordKeeper::publish(const std::string& reason, std::chrono::milliseconds patience) {
  if (published_) return;
  std::string why = reason;
  std::exception_ptr problem;
  try {
    save_pending();
  } catch (const Error& error) {
    problem = std::current_exception();
    why = std::string("its last samples could not be saved: ") + error.what();
  }
  // These two calls need almost no room on the disk: they rewrite statuses in place and rename a file.
  store_->mark_incomplete(why);
  store_->finish(patience);
  published_ = true;
  if (problem) std::rethrow_exception(problem);
}

void RecordKeeper::finish(const std::string& reason, std::chrono::milliseconds patience) {
  if (!store_) return;
  const Turn turn(*this, nullptr);
  if (turn.closed()) return;
  publish(reason, patience);
}

std::string RecordKeeper::close_now(const std::string& reason, Deadline deadline) noexcept {
  try {
    if (!store_) return {};
    const Turn turn(*this, &deadline);
    if (!turn.taken()) return "a save is still going on; what was saved before is in " + store_->partial().string();
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    publish(reason, std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()));
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string RecordKeeper::partial() const { return store_ ? store_->partial().string() : std::string(); }
std::string RecordKeeper::file() const { return store_ ? store_->target().string() : std::string(); }

}  // namespace hvd::bench
