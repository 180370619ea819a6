// The SQLite store. Only rank 0 writes the store, from one thread at a time, outside the timed region.
//
// The first save creates the partial file `<target>.<session uuid>.partial` beside the target. No other process opens
// this file, so it needs no locks and works on cluster file systems (journal mode DELETE). finish() moves the partial
// file's rows into the target in one transaction. If there is no target yet, finish() renames the partial file. A
// killed job leaves the partial file behind, with runs of status 'running'; `hvdb merge` adds these runs to a store.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "bench/store/run_record.h"

namespace hvd::bench {

class Database;

class ResultStore {
 public:
  /// Opens the store for one session. Checks before any measurement that the directory is writable, and that an
  /// existing target has our application_id, a schema version that this program knows, and a rollback journal.
  /// Errors: io; the text names the file and a remedy (another --db, free space, the other program's lock, merge).
  ResultStore(const std::filesystem::path& target, std::string session_uuid, const std::string& command_line);
  /// Keeps the partial file if a run was saved and finish() has not succeeded; otherwise removes it.
  ~ResultStore();
  ResultStore(const ResultStore&) = delete;
  ResultStore& operator=(const ResultStore&) = delete;

  /// Inserts or replaces one run and all its rows in one transaction, which is durable when save() returns.
  /// Errors: io. Earlier saves are unaffected, and a later save may succeed.
  void save(const RunRecord& run);
  /// Does for a session of `hvd_bench coll` what save() does for a run. `write` inserts or replaces the session's rows.
  /// The store gets schema version 2.
  void save_collectives(const std::string& session_uuid, const std::function<void(Database&)>& write);
  /// Sets every saved run that is still 'running' to status 'incomplete' with `reason`. Errors: io.
  void mark_incomplete(const std::string& reason);
  /// Moves all saved runs into the target. Waits up to `patience` for another program's lock on the target. On a file
  /// system without locks, replaces the target by a copy with these runs (lockless.h).
  /// Errors: io; then the partial file remains, and the text names it.
  void finish(std::chrono::milliseconds patience = std::chrono::seconds(30));
  [[nodiscard]] const std::filesystem::path& target() const;
  [[nodiscard]] const std::filesystem::path& partial() const;
  /// Returns a line for the user if the target's file system has no file locks; otherwise an empty text.
  [[nodiscard]] const std::string& note() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Facts from the first 100 bytes of a file, which are read without a lock.
struct StoreHeader {
  enum class Kind : std::uint8_t { kAbsent, kEmpty, kNotSqlite, kForeign, kOurs } kind = Kind::kAbsent;
  std::uint32_t schema_version = 0;  ///< has a meaning only for kOurs
  std::uint64_t bytes = 0;           ///< kOurs: minimum size of the file; 0 if the header has no size
  bool wal = false;                  ///< the journal mode is WAL, which no reader of stores takes
};
/// Errors: io if the file cannot be read.
StoreHeader read_store_header(const std::filesystem::path& file);
/// Returns why a store whose header has `wal` is refused, and what to do.
std::string wal_refusal(const std::filesystem::path& file);
/// Returns true if `file`, a store with this header, is shorter than the header says and no journal can restore it.
bool is_cut_off(const std::filesystem::path& file, const StoreHeader& header);
/// Returns true if this program can read and extend stores of this schema version.
bool knows_schema_version(std::uint32_t version);
/// Returns the known schema versions for messages: "1 and 2".
std::string known_schema_versions();
/// Errors: io, with advice, if `file` exists and is not a store that this program can add to.
void check_store_header(const std::filesystem::path& file);

/// Returns a random UUID (version 4) from the system's entropy.
std::string new_uuid();
/// Returns the time as text, such as "2026-11-20T20:56:00.123Z".
std::string utc_now();

}  // namespace hvd::bench
