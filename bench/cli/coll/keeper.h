// Writes the results of `hvd_bench coll` once: at the end of the session, or as far as they go if the process has to
// end while its main thread waits for another rank. Used on rank 0.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "bench/cli/coll/output.h"
#include "bench/coll/result.h"
#include "bench/coll/session.h"

namespace hvd::bench {

class CollKeeper {
 public:
  /// Sets where results go. Call before the session, which then calls the callbacks that observe() sets.
  void open(const CollOutput& output) { output_.emplace(output); }
  /// Sets the callbacks that hand over results. The keeper must outlive the session.
  void observe(coll::CollObserver& observer);
  /// Writes the results so far, unless results are written. Waits up to `patience` if the main thread is writing them,
  /// and up to `patience` for another program's lock on the store. Any thread may call it. Prints its own errors.
  void write_now(const std::string& reason, std::chrono::milliseconds patience);
  /// Returns true if results are printed and written. Any thread may call it.
  [[nodiscard]] bool written() const noexcept { return written_; }

 private:
  std::optional<CollOutput> output_;  // needs no lock: write_now() reads it only after snapshot_ was set
  std::timed_mutex mutex_;            // held while writing; guards snapshot_
  coll::Snapshot snapshot_;
  std::atomic<bool> written_ = false;
};

}  // namespace hvd::bench
