// Owners of SQLite's handles, whose errors say what to do. Internal to bench/store and bench/coll.
// Only one thread at a time may use a Database and its Statements. A Statement must not outlive its Database.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/unique_handle.h"

namespace hvd::bench {

struct DatabaseTraits {
  using Handle = sqlite3*;
  static Handle null() noexcept { return nullptr; }
  static void destroy(Handle handle) noexcept { sqlite3_close_v2(handle); }
};
struct StatementTraits {
  using Handle = sqlite3_stmt*;
  static Handle null() noexcept { return nullptr; }
  static void destroy(Handle handle) noexcept { sqlite3_finalize(handle); }
};

enum class Locking : std::uint8_t {
  kShared,     ///< SQLite's usual file locks
  kExclusive,  ///< no locks (VFS "unix-none"), for a file that nobody else opens
  kReader,     ///< no locks, and no writing
};

/// Errors: io if the path is longer than SQLite can open.
void require_short_path(const std::filesystem::path& file);

class Database {
 public:
  /// Opens `file` for reading and writing (kReader: for reading), and creates it if `create` is true. Errors: io.
  Database(std::filesystem::path file, Locking locking, bool create);

  /// Runs statements that return nothing. Errors: io.
  void run(const std::string& sql);
  /// text() and integer() return the first column of the query's first row. Errors: io.
  std::string text(const std::string& sql);
  std::int64_t integer(const std::string& sql);
  /// Returns true if a transaction is open.
  [[nodiscard]] bool in_transaction() const { return sqlite3_get_autocommit(handle_.get()) == 0; }
  void busy_timeout(int milliseconds) { sqlite3_busy_timeout(handle_.get(), milliseconds); }

  /// Throws Error{kIo} for SQLite's result `code`. The text names the file, what failed, and what to do.
  [[noreturn]] void fail(int code, std::string_view doing) const;
  [[nodiscard]] sqlite3* get() const { return handle_.get(); }

 private:
  std::filesystem::path file_;
  UniqueHandle<DatabaseTraits> handle_;
};

/// A prepared statement. Bind every parameter in order. Then call run(), or call integer() once.
class Statement {
 public:
  Statement(Database& database, std::string_view sql);
  Statement& bind(std::string_view value);
  Statement& bind(std::int64_t value);
  Statement& bind(double value);  ///< NaN becomes NULL
  Statement& bind(const std::optional<double>& value);
  Statement& bind_blob(std::span<const std::byte> value);  ///< not copied: `value` must live until run() has returned
  Statement& bind_null();
  /// Executes the statement to the end, then clears the parameters. Errors: io.
  void run();
  /// Returns the first column of the query's first row. Errors: io, also if there is no row.
  std::int64_t integer();

 private:
  void check(int code, std::string_view doing);

  Database& database_;
  UniqueHandle<StatementTraits> handle_;
  int next_ = 1;
};

/// Rolls back in the destructor, unless commit() has succeeded.
class Transaction {
 public:
  explicit Transaction(Database& database);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
};

}  // namespace hvd::bench
