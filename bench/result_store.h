// The SQLite store. Written by rank 0 only, from one thread at a time, outside the timed region.
//
// While a job runs, its rows live in `<file>.<session uuid>.partial` beside the target, which no other
// process opens (journal mode DELETE, no locks needed, so that it works on cluster file systems). finish()
// moves the rows into the target in one transaction, or renames the partial into place when there is no
// target yet. A killed job leaves the partial with status 'running': scripts/merge reads it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "bench/run_record.h"

namespace hvd::bench {

class ResultStore {
 public:
  /// Opens the store for one session. Checks now, before hours of measuring, that the directory is writable
  /// and that an existing target has our application_id and a schema version we know.
  /// Errors: io naming the file and the way out (another --db, free space, the other program's lock, merge).
  ResultStore(std::filesystem::path target, std::string session_uuid, std::string command_line);
  ~ResultStore();
  ResultStore(const ResultStore&) = delete;
  ResultStore& operator=(const ResultStore&) = delete;

  /// Inserts or replaces one run with all its rows, in one transaction, durable when it returns.
  void save(const RunRecord& run);
  /// Publishes all saved runs into the target. Errors: io; the partial is kept and named in the text.
  void finish();
  [[nodiscard]] const std::filesystem::path& target() const;
  [[nodiscard]] const std::filesystem::path& partial() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Random (version 4) UUID from the system's entropy.
std::string new_uuid();
/// "2026-11-20T20:56:00.123Z".
std::string utc_now();

}  // namespace hvd::bench
