// Owners of SQLite's handles, whose errors say what to do. Internal to bench/store and bench/coll.
// Only one thread at a time may use a Database and its Statements. A Statement must not outlive its Database.
#pragma once

#include <sqlite3.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

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
};

/// Errors: io if the path is longer than SQLite can open.
void require_short_path(const std::filesystem::path& file);

class Database {
 public:
  /// Opens `file` for reading and writing, and creates it if `create` is true. Writing ignores the schema's CHECKs, so
  /// that no measured run is lost; readers of the store evaluate them. Errors: io.
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

/// A value for a column or a parameter. Does not own texts and blobs. Value() and NaN become NULL.
struct Value {
  Value() = default;
  template <std::integral T>
  Value(T number) : held(static_cast<std::int64_t>(number)) {}
  Value(double number) : held(number) {}
  template <class T>
  Value(const std::optional<T>& number) {
    if (number) held = Value(*number).held;
  }
  template <std::convertible_to<std::string_view> T>
  Value(const T& text) : held(std::string_view(text)) {}
  Value(const std::vector<double>& numbers) : held(std::as_bytes(std::span(numbers))) {}

  std::variant<std::monostate, std::int64_t, double, std::string_view, std::span<const std::byte>> held;
};

/// A prepared statement. Bind every parameter in order. Then call run(), or call integer() once.
class Statement {
 public:
  Statement(Database& database, std::string_view sql);
  Statement& bind(const Value& value);  ///< a blob must live until run() has returned
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

/// One column of a row to write.
struct Column {
  std::string_view name;
  Value value;
};

/// Writes rows into a table. All rows have the same columns in the same order.
class RowWriter {
 public:
  /// `key`: number of columns, the first ones, that identify a row. A row whose key is stored already replaces the
  /// other columns of that row, if they differ. With 0, a stored key is an error.
  RowWriter(Database& database, std::string table, std::size_t key = 0)
      : database_(database), table_(std::move(table)), key_(key) {}
  void write(std::span<const Column> columns);
  void write(std::initializer_list<Column> columns) { write(std::span(columns.begin(), columns.size())); }

 private:
  Database& database_;
  std::string table_;
  std::size_t key_;
  std::optional<Statement> statement_;  // prepared when the first row gives the columns
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
