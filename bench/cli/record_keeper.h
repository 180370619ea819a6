// Saves a session's runs in the store while the session measures, and publishes the runs however the session ends. The
// training thread saves the runs; the signal thread closes the store if the training thread cannot close it. Only one
// thread works on the store at a time. The signal thread waits for its turn only until a deadline.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "bench/store/result_store.h"
#include "bench/store/run_record.h"
#include "engine/base/deadline.h"
#include "engine/base/mutex.h"

namespace hvd::bench {

class RecordKeeper {
 public:
  /// `store` may be null (--no-db): then nothing is stored and nothing fails. `warn` is called with one line when a
  /// save fails for the first time.
  RecordKeeper(std::unique_ptr<ResultStore> store, std::function<void(std::string_view)> warn);

  /// Stores `run`. If the first save of a session succeeds and a later save fails (a full disk), the run is remembered,
  /// and its save is tried again with every following save and by finish().
  /// Errors: io, if the first save of the session fails.
  void save(const RunRecord& run);
  /// Publishes the runs into the target file. A run that has not ended is marked as incomplete for `reason`. A run
  /// whose last save failed, and now fails again, is also marked as incomplete; its earlier saves are published.
  /// Errors: io; the text says where the rows are instead, or what is missing.
  void finish(const std::string& reason = "ended without saying why",
              std::chrono::milliseconds patience = std::chrono::seconds(30));
  /// Does what finish() does, but only until a deadline. The signal thread calls close_now(). A later save() does
  /// nothing. Returns a text that says what went wrong, or "" if all went well. Never throws.
  std::string close_now(const std::string& reason, Deadline deadline) noexcept;

  /// Returns the absolute path of the target, or "" without a store.
  [[nodiscard]] std::string file() const;
  /// Returns the file beside the target that holds the rows until the session ends; "" without a store. Call before the
  /// first save.
  [[nodiscard]] std::string partial() const;
  /// Returns true if a run is on the disk. Any thread may call has_saved(), which does not wait for the store.
  [[nodiscard]] bool has_saved() const noexcept { return saved_any_; }

 private:
  class Turn;

  // Only the thread that holds a Turn calls save_pending() and publish().
  void save_pending();
  void publish(const std::string& reason, std::chrono::milliseconds patience);

  const std::unique_ptr<ResultStore> store_;  // used by the thread that holds a Turn
  const std::function<void(std::string_view)> warn_;
  Mutex mutex_;
  CondVar turn_ended_;
  bool busy_ HVD_GUARDED_BY(mutex_) = false;
  bool closed_ HVD_GUARDED_BY(mutex_) = false;
  std::atomic<bool> saved_any_ = false;
  // Only the thread that holds a Turn uses the fields below.
  std::map<std::string, RunRecord> unsaved_;
  bool warned_ = false;
  bool published_ = false;
};

}  // namespace hvd::bench
