#include "bench/store/sqlite_handle.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"

namespace hvd::bench {
namespace {

std::string advice(int code, int system_errno) {
  switch (code & 0xff) {
    case SQLITE_FULL: return "the disk is full; free space or use --db on another file system";
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return "another program holds a lock on it; end that program and merge, or use another --db";
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN: return "check the permissions of the file and its directory, or use another --db";
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT: return "the file is not a sound SQLite database; use another --db";
    case SQLITE_IOERR:
      if (system_errno == ENOSPC || system_errno == EDQUOT)
        return "no space is left (disk or quota); free space or use another --db";
      if (system_errno == EFBIG) return "the limit on file sizes is reached (ulimit -f); raise it or use another --db";
      return "the file system failed; check it, or use --db on a local one";
    default: return "use another --db";
  }
}

/// Returns errno of the failed call. SQLite rolls back before it reports an error, so errno itself may have changed.
int last_errno(sqlite3* database) {
  if (database == nullptr) return 0;
  if (const int code = sqlite3_system_errno(database); code != 0) return code;
  int code = 0;
  sqlite3_file_control(database, "main", SQLITE_FCNTL_LAST_ERRNO, &code);
  return code;
}

}  // namespace

void require_short_path(const std::filesystem::path& file) {
  const sqlite3_vfs* const system = sqlite3_vfs_find(nullptr);
  constexpr std::size_t kJournal = 8;  // SQLite adds "-journal" to the path
  const std::size_t length = std::filesystem::absolute(file).string().size();
  if (system == nullptr || length + kJournal <= static_cast<std::size_t>(system->mxPathname)) return;
  throw Error(Errc::kIo, fmt::format("{}: this path has {} bytes, and SQLite opens paths of at most {}; use a shorter "
                                     "one",
                                     file.string(), length, static_cast<std::size_t>(system->mxPathname) - kJournal));
}

Database::Database(std::filesystem::path file, Locking locking, bool create) : file_(std::move(file)) {
  // Source for STRICT tables: https://www.sqlite.org/stricttables.html
  constexpr int kOldestWithStrict = 3037000;
  if (sqlite3_libversion_number() < kOldestWithStrict) {
    throw Error(Errc::kUnsupported, std::string("SQLite ") + sqlite3_libversion() +
                                        " is too old for the store, which needs 3.37; update it or use --no-db");
  }
  require_short_path(file_);
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_EXRESCODE | (create ? SQLITE_OPEN_CREATE : 0);
  const int code =
      sqlite3_open_v2(file_.c_str(), handle_.out(), flags, locking == Locking::kShared ? nullptr : "unix-none");
  if (code != SQLITE_OK) fail(code, "opening");
  run("PRAGMA ignore_check_constraints = ON");
}

void Database::fail(int code, std::string_view doing) const {
  const int system_errno = last_errno(handle_.get());
  std::string what = fmt::format("{}: {} failed ({}", file_.string(), doing, sqlite3_errstr(code));
  if (code == SQLITE_ERROR && handle_) what += fmt::format(": {}", sqlite3_errmsg(handle_.get()));
  if (system_errno != 0 && (code & 0xff) != SQLITE_BUSY) what += fmt::format(", {}", std::strerror(system_errno));
  throw Error(Errc::kIo, fmt::format("{}): {}", what, advice(code, system_errno)));
}

void Database::run(const std::string& sql) {
  if (const int code = sqlite3_exec(get(), sql.c_str(), nullptr, nullptr, nullptr); code != SQLITE_OK)
    fail(code, "writing");
}

std::string Database::text(const std::string& sql) {
  UniqueHandle<StatementTraits> statement;
  int code = sqlite3_prepare_v2(get(), sql.c_str(), -1, statement.out(), nullptr);
  if (code == SQLITE_OK) code = sqlite3_step(statement.get());
  if (code != SQLITE_ROW) fail(code, "reading");
  const unsigned char* value = sqlite3_column_text(statement.get(), 0);
  return value == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(value));
}

std::int64_t Database::integer(const std::string& sql) { return Statement(*this, sql).integer(); }

Statement::Statement(Database& database, std::string_view sql) : database_(database) {
  check(sqlite3_prepare_v2(database.get(), sql.data(), static_cast<int>(sql.size()), handle_.out(), nullptr),
        "preparing");
}

void Statement::check(int code, std::string_view doing) {
  if (code != SQLITE_OK) database_.fail(code, doing);
}

Statement& Statement::bind(const Value& value) {
  sqlite3_stmt* const statement = handle_.get();
  const int at = next_++;
  if (const auto* number = std::get_if<std::int64_t>(&value.held)) {
    check(sqlite3_bind_int64(statement, at, *number), "binding");
  } else if (const auto* real = std::get_if<double>(&value.held)) {
    check(sqlite3_bind_double(statement, at, *real), "binding");
  } else if (const auto* given = std::get_if<std::string_view>(&value.held)) {
    // SQLite accepts any bytes as text, but readers of the store accept only UTF-8.
    const std::string text = well_formed_utf8(*given);
    check(sqlite3_bind_text64(statement, at, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8), "binding");
  } else if (const auto* blob = std::get_if<std::span<const std::byte>>(&value.held)) {
    // SQLite would bind a null pointer as NULL, but an empty series must be an empty blob.
    const void* const data = blob->empty() ? "" : static_cast<const void*>(blob->data());
    check(sqlite3_bind_blob64(statement, at, data, blob->size(), SQLITE_STATIC), "binding");
  } else {
    check(sqlite3_bind_null(statement, at), "binding");
  }
  return *this;
}

void Statement::run() {
  int code = SQLITE_ROW;
  while (code == SQLITE_ROW) code = sqlite3_step(handle_.get());
  sqlite3_reset(handle_.get());
  sqlite3_clear_bindings(handle_.get());
  next_ = 1;
  if (code != SQLITE_DONE) database_.fail(code, "writing");
}

std::int64_t Statement::integer() {
  if (const int code = sqlite3_step(handle_.get()); code != SQLITE_ROW) database_.fail(code, "reading");
  return sqlite3_column_int64(handle_.get(), 0);
}

void RowWriter::write(std::span<const Column> columns) {
  if (!statement_) {
    std::string names, values, changes, comma;
    std::size_t number = 0;
    for (const Column& column : columns) {
      const std::string value = "?" + std::to_string(++number);
      names.append(comma).append(column.name);
      values.append(comma).append(value);
      if (number > key_) changes.append(fmt::format("{}{} = {}", changes.empty() ? "" : ", ", column.name, value));
      comma = ", ";
    }
    std::string sql = fmt::format("INSERT INTO {} ({}) VALUES ({})", table_, names, values);
    if (key_ > 0) sql += fmt::format(" ON CONFLICT DO UPDATE SET {} WHERE ({}) IS NOT ({})", changes, names, values);
    statement_.emplace(database_, sql);
  }
  for (const Column& column : columns) statement_->bind(column.value);
  statement_->run();
}

// BEGIN IMMEDIATE waits for the lock here. BEGIN would wait for the lock at the transaction's first write.
Transaction::Transaction(Database& database) : database_(database) { database_.run("BEGIN IMMEDIATE"); }

Transaction::~Transaction() {
  // After some errors (full disk) SQLite has already rolled back.
  if (database_.in_transaction()) sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Transaction::commit() { database_.run("COMMIT"); }

}  // namespace hvd::bench
