// Writes the results of `hvd_bench coll` to standard output, the files of -J and --csv, and the store of --db. Used on
// rank 0 only, by one thread at a time unless a comment says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bench/cli/console.h"
#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/coll/session.h"
#include "bench/store/result_store.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

/// Call before measuring. Errors: io if the file of -J or --csv cannot be written; invalid_argument if the store of
/// --db is one of these files.
void check_coll_outputs(const coll::CollOptions& options);

/// The store of --db. Writes nothing to the file before put().
class CollStore {
 public:
  /// Collects provenance. Errors: those of ResultStore's constructor.
  CollStore(const std::string& file, const std::vector<std::string>& argv, const ProcessStart& start);
  /// Stores a session that has ended. Waits up to `patience` for another program's lock. Errors: io; the text names the
  /// file that keeps the results instead, if there is one.
  void put(const coll::CollOptions& options, const coll::CollResult& result, std::chrono::milliseconds patience);
  /// Absolute path of the store.
  [[nodiscard]] std::string file() const { return store_.target().string(); }
  [[nodiscard]] const std::string& note() const { return store_.note(); }

 private:
  const std::string session_uuid_ = new_uuid();
  ResultStore store_;
  const Provenance provenance_;
};

/// Arguments of put_coll_outputs(), all borrowed.
struct CollOutput {
  const coll::CollOptions& options;
  const std::vector<std::string>& argv;
  const Environment& environment;
  Console& console;
  CollStore* store;  ///< null: --db was not given
};

/// Prints the table and writes the files and the store. An error in one of these outputs does not stop the others.
/// `patience` is passed to CollStore::put(). Errors: the first error of an output, usually io.
void put_coll_outputs(const CollOutput& output, const coll::CollResult& result, std::chrono::milliseconds patience);

/// Writes the results once: at the end of the session, or as far as they go if the process has to end while its main
/// thread waits for another rank.
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
