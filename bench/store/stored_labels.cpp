#include "bench/store/stored_labels.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>

#include "bench/store/lockless.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kBusyMilliseconds = 5000;
// A job saves every five seconds, and a save takes much less, so a file that changes in every attempt is unlikely.
constexpr int kAttempts = 10;
constexpr std::chrono::milliseconds kPause{100};
constexpr const char* kUsableSessions =
    "SELECT fact.value FROM run JOIN provenance AS fact ON fact.run_uuid = run.uuid AND fact.key = ?"
    " GROUP BY run.session_uuid, fact.value HAVING sum(run.status <> 'complete' OR run.traced <> 0 OR EXISTS ("
    "SELECT 1 FROM provenance AS planned JOIN provenance AS played ON played.run_uuid = planned.run_uuid"
    " WHERE planned.run_uuid = run.uuid AND planned.key = 'label.replay' AND played.key = 'replay.profile'"
    " AND planned.value <> played.value)) = 0";

// Counts the tables, so that a damaged store and a store with a view in place of a table are refused. A view would run
// SQL that the file's author wrote.
constexpr const char* kRealTables =
    "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 AND name IN"
    " ('session', 'run', 'provenance', 'rank', 'sample', 'decomposition', 'operation')";
constexpr int kTableCount = 7;

/// A temporary folder that is removed at the end of the scope.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / ("hvd_bench-" + new_uuid())) { fs::create_directory(path_); }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw Error(Errc::kIo, fmt::format("{}: {}", file.string(), why));
}

void check(int code, const fs::path& file) {
  if (code != SQLITE_OK) refuse(file, fmt::format("damaged, or being written ({})", sqlite3_errstr(code)));
}

void require_store(const fs::path& file) {
  require_short_path(file);
  const StoreHeader header = read_store_header(file);
  switch (header.kind) {
    case StoreHeader::Kind::kAbsent: refuse(file, "no such file");
    case StoreHeader::Kind::kEmpty: refuse(file, "empty: its job ended before it wrote anything");
    case StoreHeader::Kind::kNotSqlite: refuse(file, "not a SQLite database, or only the beginning of one");
    case StoreHeader::Kind::kForeign: refuse(file, "another program's database");
    case StoreHeader::Kind::kOurs: break;
  }
  if (!knows_schema_version(header.schema_version)) {
    refuse(file,
           fmt::format("has schema version {}, this program knows {}", header.schema_version, known_schema_versions()));
  }
  if (is_cut_off(file, header)) refuse(file, "is cut off: shorter than its header says");
}

/// `vfs`: SQLite's name of the way to lock the file; null for the usual way.
std::set<std::string> query(const fs::path& file, const fs::path& opened, int flags, const char* vfs,
                            const std::string& key) {
  std::set<std::string> values;
  UniqueHandle<DatabaseTraits> database;
  check(sqlite3_open_v2(opened.c_str(), database.out(), flags, vfs), file);
  sqlite3_busy_timeout(database.get(), kBusyMilliseconds);
  check(sqlite3_db_config(database.get(), SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr), file);
  UniqueHandle<StatementTraits> tables;
  check(sqlite3_prepare_v2(database.get(), kRealTables, -1, tables.out(), nullptr), file);
  check(sqlite3_step(tables.get()) == SQLITE_ROW ? SQLITE_OK : sqlite3_errcode(database.get()), file);
  if (sqlite3_column_int(tables.get(), 0) != kTableCount) refuse(file, "damaged: one of its tables is missing");
  UniqueHandle<StatementTraits> statement;
  check(sqlite3_prepare_v2(database.get(), kUsableSessions, -1, statement.out(), nullptr), file);
  check(sqlite3_bind_text(statement.get(), 1, key.c_str(), -1, SQLITE_TRANSIENT), file);
  int code = SQLITE_OK;
  while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) {
    const unsigned char* text = sqlite3_column_text(statement.get(), 0);
    if (text != nullptr) values.emplace(reinterpret_cast<const char*>(text));
  }
  check(code == SQLITE_DONE ? SQLITE_OK : code, file);
  return values;
}

std::set<std::string> read_once(const fs::path& file, const char* vfs, const std::string& key) {
  const fs::path journal = file.string() + "-journal";
  std::error_code absent;
  if (const auto size = fs::file_size(journal, absent); absent || size == 0) {
    return query(file, file, SQLITE_OPEN_READONLY, vfs, key);
  }
  // Roll back the journal in a copy. A rollback in place would write to the store, and might undo the work of a running
  // job, because a session writes its own file without locks. Copy the database file before the journal: the journal
  // then covers all pages that were being changed.
  const Scratch scratch;
  const fs::path copy = scratch.path() / file.filename();
  fs::copy_file(file, copy);
  fs::copy_file(journal, copy.string() + "-journal");
  return query(file, copy, SQLITE_OPEN_READWRITE, "unix-none", key);
}

/// Reads until the file does not change meanwhile. A session writes its own file without locks, and there are file
/// systems without locks, so SQLite may read a file that is half changed.
std::set<std::string> read_file(const fs::path& file, const std::string& key, std::string& note) {
  require_store(file);
  const std::string fault = lock_fault(file);
  if (!fault.empty() && note.empty()) note = no_locks_note(file, fault);
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    const StoreState before = store_state(file);
    require_store(file);
    std::set<std::string> values;
    std::exception_ptr problem;
    try {
      values = read_once(file, fault.empty() ? nullptr : "unix-none", key);
    } catch (...) {
      problem = std::current_exception();
    }
    if (store_state(file) == before) {
      if (problem) std::rethrow_exception(problem);
      return values;
    }
    std::this_thread::sleep_for(kPause);
  }
  refuse(file, "changed while it was read; ask again when its job has ended");
}

}  // namespace

StoredLabels stored_labels(const std::string& key, const std::vector<std::string>& files) {
  StoredLabels labels;
  for (const std::string& file : files) {
    try {
      labels.values.merge(read_file(file, "label." + key, labels.note));
    } catch (const Error& error) {
      labels.problems.emplace_back(error.what());
    } catch (const fs::filesystem_error& error) {
      labels.problems.push_back(fmt::format("{}: cannot be copied to be read: {}", file, error.code().message()));
    }
  }
  return labels;
}

}  // namespace hvd::bench
