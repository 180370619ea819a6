// Keeps a session's runs in the store while it measures, and gets them out in order however it ends. Shared
// between the training thread, which saves, and the signal thread, which closes when the first one cannot.
// One of them works on the store at a time; the other waits its turn, up to a deadline.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "bench/result_store.h"
#include "bench/run_record.h"
#include "engine/base/deadline.h"
#include "engine/base/mutex.h"

namespace hvd::bench {

class RecordKeeper {
 public:
  /// `store` may be null (--no-db): then nothing is kept and nothing fails. `warn` gets one line when a save
  /// fails for the first time.
  RecordKeeper(std::unique_ptr<ResultStore> store, std::function<void(std::string_view)> warn);

  /// Stores `run`. The first save of a session must succeed; a later one that fails (a full disk) is
  /// remembered and tried again with every following save and by finish().
  /// Errors: io, for the first.
  void save(const RunRecord& run);
  /// The end: publishes into the target. What has not ended is marked as incomplete for `reason`, and so is
  /// a run whose last save does not succeed now either: what was saved of it before is published.
  /// Errors: io; the text says where the rows are instead, or what is missing.
  void finish(const std::string& reason = "ended without saying why",
              std::chrono::milliseconds patience = std::chrono::seconds(30));
  /// For the signal thread: finish(), in time or not at all; no save follows.
  /// Returns what went wrong, empty if nothing. Never throws.
  std::string close_now(const std::string& reason, Deadline deadline) noexcept;

  /// The target, absolute; empty without a store.
  [[nodiscard]] std::string file() const;
  /// The file beside it that is written until the end; empty without a store. Before any save.
  [[nodiscard]] std::string partial() const;
  /// Whether a run is on the disk. Any thread, without waiting.
  [[nodiscard]] bool has_saved() const noexcept { return saved_any_; }

 private:
  class Turn;

  // By whose turn it is:
  void save_pending();
  void publish(const std::string& reason, std::chrono::milliseconds patience);

  const std::unique_ptr<ResultStore> store_;  // used by whose turn it is
  const std::function<void(std::string_view)> warn_;
  Mutex mutex_;
  CondVar turn_ended_;
  bool busy_ HVD_GUARDED_BY(mutex_) = false;
  bool closed_ HVD_GUARDED_BY(mutex_) = false;
  std::atomic<bool> saved_any_ = false;
  // The fields below belong to whose turn it is.
  std::map<std::string, RunRecord> unsaved_;
  bool warned_ = false;
  bool published_ = false;
};

}  // namespace hvd::bench
