// The SQLite store. Written by rank 0 only, from one thread at a time, outside the timed region.
//
// Once a job has rows, they live in `<file>.<session uuid>.partial` beside the target, which no other
// process opens (journal mode DELETE, no locks needed, so that it works on cluster file systems). finish()
// moves the rows into the target in one transaction, or renames the partial into place when there is no
// target yet. A killed job leaves the partial with status 'running': hvdb merge reads it.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "bench/run_record.h"

namespace hvd::bench {

namespace coll {
struct Record;
}

class ResultStore {
 public:
  /// Opens the store for one session. Checks now, before hours of measuring, that the directory is writable
  /// and that an existing target has our application_id and a schema version we know.
  /// Errors: io naming the file and the way out (another --db, free space, the other program's lock, merge).
  ResultStore(const std::filesystem::path& target, std::string session_uuid, const std::string& command_line);
  /// Keeps the partial if finish() was not called or failed after a run was saved, else removes it.
  ~ResultStore();
  ResultStore(const ResultStore&) = delete;
  ResultStore& operator=(const ResultStore&) = delete;

  /// Inserts or replaces one run with all its rows, in one transaction, durable when it returns.
  /// Errors: io; what was saved before is untouched, and a later save may succeed.
  void save(const RunRecord& run);
  /// The same for the one launch of `hvd_bench coll` that the session is. Makes the store one of schema version 2.
  void save(const coll::Record& record);
  /// Gives every saved run that is still 'running' the status 'incomplete' and `reason`. Errors: io.
  void mark_incomplete(const std::string& reason);
  /// Publishes all saved runs into the target; waits up to `patience` for another program's lock on it.
  /// Errors: io; the partial is kept and named in the text.
  void finish(std::chrono::milliseconds patience = std::chrono::seconds(30));
  [[nodiscard]] const std::filesystem::path& target() const;
  [[nodiscard]] const std::filesystem::path& partial() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the first 100 bytes of a file say it is, read without a lock.
struct StoreHeader {
  enum class Kind : std::uint8_t { kAbsent, kEmpty, kNotSqlite, kForeign, kOurs } kind = Kind::kAbsent;
  std::uint32_t schema_version = 0;  ///< meaningful for kOurs
  std::uint64_t bytes = 0;           ///< of a kOurs: what its size should be at least; 0 if it does not say
};
/// Errors: io when the file cannot be read.
StoreHeader read_store_header(const std::filesystem::path& file);
/// Whether `file`, a store with this header, is shorter than its header says, and no journal beside it says why.
bool is_cut_off(const std::filesystem::path& file, const StoreHeader& header);
/// Whether this program can read and extend stores of that schema version.
bool knows_schema_version(std::uint32_t version);
/// Those that it knows, for messages: "1 and 2".
std::string known_schema_versions();
/// Errors: io that says what the file is and what to do, when it is not a store that this program can add to.
void check_store_header(const std::filesystem::path& file);

/// Random (version 4) UUID from the system's entropy.
std::string new_uuid();
/// "2026-11-20T20:56:00.123Z".
std::string utc_now();

}  // namespace hvd::bench
