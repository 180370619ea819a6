#include "bench/store/result_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "bench/store/build_info.h"
#include "bench/store/lockless.h"
#include "bench/store/run_writer.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

// Tables are listed in the order of insertion: parents before children.
constexpr std::array kTables{"session", "run", "provenance", "rank", "sample", "decomposition", "operation"};
constexpr std::array kTablesOfVersion2{"coll_session", "coll_provenance", "coll_cell", "coll_sample"};
constexpr std::int64_t kVersionWithCollectives = 2;

// With many ranks a save writes many pages, and its time depends on the number of pages. Large pages are then faster,
// and samples of a few kilobytes fill large pages better than small ones. With few ranks, large pages of small tables
// would be most of the file. results/recorded/2026-11-25-2cores has the measured times.
constexpr int kManyRanks = 64, kLargePageBytes = 16384;

// A transaction that changes more pages than fit into the cache syncs its journal many times. A cache of 64 MiB is
// enough for 1,900 samples of each of 8 series of 512 ranks. SQLite allocates only the memory that the pages need.
constexpr const char* kPartialPragmas =
    "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA cache_size = -65536;";

fs::path absolute_path(const fs::path& file) {
  std::error_code problem;
  fs::path path = fs::absolute(file, problem).lexically_normal();
  if (!problem) return path;
  throw Error(Errc::kIo, fmt::format("{}: the working directory is gone ({}); cd to another one, or give --db an "
                                     "absolute path",
                                     file.string(), problem.message()));
}

/// Returns the status of `path`, following links. Errors: io; it is no error if nothing exists at `path`.
fs::file_status look_at(const fs::path& path) {
  std::error_code problem;
  const fs::file_status status = fs::status(path, problem);
  if (status.type() != fs::file_type::none) return status;
  throw Error(Errc::kIo,
              fmt::format("{}: cannot be looked at ({}); use another --db", path.string(), problem.message()));
}

/// Makes a rename durable. Ignores errors, because some file systems refuse to sync a directory.
void sync_directory(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

/// Renames `from` to `to` and returns true. Returns false if `to` exists. Errors: io.
bool rename_if_absent(const fs::path& from, const fs::path& to) {
  // link() never replaces a file, even on network file systems. If the file system has no hard links, use rename().
  if (::link(from.c_str(), to.c_str()) == 0) {
    ::unlink(from.c_str());
    return true;
  }
  if (errno == EEXIST) return false;
  if (fs::exists(look_at(to))) return false;
  if (::rename(from.c_str(), to.c_str()) == 0) return true;
  throw Error(Errc::kIo, fmt::format("{}: cannot be created ({}): check the permissions of its directory", to.string(),
                                     std::strerror(errno)));
}

std::uint32_t big_endian(std::span<const unsigned char, 4> bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) | (std::uint32_t{bytes[2]} << 8) | bytes[3];
}

/// Returns the number after `PRAGMA <pragma> =` in the schema `sql`, so that the number is defined only there.
std::uint32_t schema_pragma(std::string_view sql, std::string_view pragma) {
  const std::string needle = "PRAGMA " + std::string(pragma) + " = ";
  return static_cast<std::uint32_t>(std::stoul(std::string(sql.substr(sql.find(needle) + needle.size(), 12))));
}

}  // namespace

class ResultStore::Impl {
 public:
  Impl(const fs::path& target, std::string session_uuid, std::string command_line)
      : target_(absolute_path(target)),
        partial_(fmt::format("{}.{}.partial", target_.string(), session_uuid)),
        session_uuid_(std::move(session_uuid)),
        command_line_(std::move(command_line)) {
    const fs::path directory = target_.parent_path();
    if (!fs::is_directory(look_at(directory))) {
      throw Error(Errc::kIo, fmt::format("{}: there is no directory {}; create it (mkdir -p) or use another --db",
                                         target_.string(), directory.string()));
    }
    if (::access(directory.c_str(), W_OK | X_OK) != 0) {
      throw Error(Errc::kIo,
                  fmt::format("{}: the directory {} cannot be written ({}); use --db on another one, or --no-db",
                              target_.string(), directory.string(), std::strerror(errno)));
    }
    check_store_header(target_);
    if (fs::exists(look_at(target_)) && ::access(target_.c_str(), R_OK | W_OK) != 0) {
      throw Error(Errc::kIo, fmt::format("{}: cannot be written ({}); change its permissions or use another --db",
                                         target_.string(), std::strerror(errno)));
    }
    // Create the partial file, so that a write error is reported now. Then remove the file, because a job that is
    // killed while it warms up must not leave a file. The first save creates the file again.
    create_partial(1);
    database_.reset();  // lock_fault() must not be called while SQLite has the file open
    const std::string fault = lock_fault_here();
    if (!fault.empty()) note_ = no_locks_note(target_, fault);
    remove_partial();
  }

  ~Impl() {
    if (saved_.empty()) remove_partial();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void save(const RunRecord& run) {
    require_open(run.allocation_size);
    Transaction transaction(*database_);
    write_run(*database_, run);
    transaction.commit();
    saved_.insert(run.uuid);
  }

  void save_collectives(const std::string& session_uuid, const std::function<void(Database&)>& write) {
    require_open();
    Transaction transaction(*database_);
    add_tables_of_version_2(*database_);
    write(*database_);
    transaction.commit();
    saved_.insert(session_uuid);
  }

  void mark_incomplete(const std::string& reason) {
    if (saved_.empty()) return;
    require_open();
    Statement(*database_,
              "UPDATE run SET status = 'incomplete', status_reason = ?, finished_utc = ? WHERE status = 'running'")
        .bind(reason)
        .bind(utc_now())
        .run();
  }

  void finish(std::chrono::milliseconds patience) {
    if (saved_.empty()) return;
    require_open();
    try {
      publish(patience);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}; this session's results are kept in {}, add them later with hvdb merge "
                                            "-o {} {}",
                                            error.what(), partial_.string(), target_.string(), partial_.string()));
    }
    saved_.clear();
    finished_ = true;
  }

  [[nodiscard]] const fs::path& target() const { return target_; }
  [[nodiscard]] const fs::path& partial() const { return partial_; }
  [[nodiscard]] const std::string& note() const { return note_; }

 private:
  void create_partial(int ranks) {
    try {
      database_.emplace(partial_, Locking::kExclusive, true);
      if (ranks >= kManyRanks) database_->run("PRAGMA page_size = " + std::to_string(kLargePageBytes));
      database_->run(kPartialPragmas);
      database_->run(fmt::format("BEGIN; {}; COMMIT;", schema_sql()));
      RowWriter(*database_, "session")
          .write({{"uuid", session_uuid_}, {"started_utc", started_utc_}, {"command_line", command_line_}});
    } catch (...) {
      remove_partial();
      throw;
    }
  }

  void publish(std::chrono::milliseconds patience) {
    if (const std::string found = database_->text("PRAGMA quick_check"); found != "ok") {
      throw Error(Errc::kIo,
                  fmt::format("{}: SQLite finds it damaged ({}); check the file system", partial_.string(), found));
    }
    database_.reset();  // if a call below fails, a later finish() opens the file again
    std::error_code problem;
    const fs::path resolved = fs::canonical(target_, problem);  // the target may be a link, or absent
    const fs::path place = problem ? target_ : resolved;
    std::optional<WriteLock> lock;
    if (!lock_fault_here().empty()) lock.emplace(place, patience);
    if (rename_if_absent(partial_, target_)) {
      sync_directory(target_.parent_path());
      return;
    }
    check_store_header(target_);
    if (lock) {
      replace_store(place, *lock, session_uuid_, [&](const fs::path& copy) {
        Database target(copy, Locking::kExclusive, false);
        lock->require_held();
        target.run("PRAGMA journal_mode = MEMORY");  // the copy of a killed session is not used
        merge(target);
      });
      sync_directory(place.parent_path());
    } else {
      Database target(target_, Locking::kShared, false);
      target.busy_timeout(static_cast<int>(patience.count()));
      merge(target);
    }
    ::unlink(partial_.c_str());
  }

  /// Returns why the target's file system has no locks. The target or the partial file must exist.
  [[nodiscard]] std::string lock_fault_here() const {
    return lock_fault(fs::exists(look_at(target_)) ? target_ : partial_);
  }

  void merge(Database& target) {
    target.run("PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL;");
    const std::string partial = partial_.string();
    Value path;  // as bytes, because a text is made UTF-8 when it is bound
    path.held = std::as_bytes(std::span(partial));
    Statement(target, "ATTACH CAST(? AS TEXT) AS partial").bind(path).run();
    Transaction transaction(target);
    if (target.integer("SELECT count(*) FROM sqlite_schema") == 0) target.run(std::string(schema_sql()));
    if (!knows_schema_version(static_cast<std::uint32_t>(target.integer("PRAGMA main.user_version")))) {
      throw Error(Errc::kIo, target_.string() + ": its schema changed while this session ran; use another --db");
    }
    const auto copy = [&target](const std::string& table) {  // a table has the same columns in all versions
      target.run(fmt::format("INSERT INTO main.{0} SELECT * FROM partial.{0}", table));
    };
    for (const char* const table : kTables) copy(table);
    if (target.integer("PRAGMA partial.user_version") >= kVersionWithCollectives) {
      add_tables_of_version_2(target);
      for (const char* const table : kTablesOfVersion2) copy(table);
    }
    transaction.commit();
  }

  /// Call inside a transaction.
  static void add_tables_of_version_2(Database& database) {
    if (database.integer("PRAGMA main.user_version") < kVersionWithCollectives) {
      database.run(std::string(schema_2_sql()));
    }
  }

  void require_open(int ranks = 1) {
    if (database_) return;
    if (finished_) throw Error(Errc::kIo, partial_.string() + ": the session has been finished already");
    if (saved_.empty()) return create_partial(ranks);
    database_.emplace(partial_, Locking::kExclusive, false);
    database_->run(kPartialPragmas);
  }

  void remove_partial() noexcept {
    database_.reset();
    ::unlink(partial_.c_str());
    ::unlink((partial_.string() + "-journal").c_str());
  }

  fs::path target_, partial_;
  std::string note_;
  const std::string session_uuid_, command_line_, started_utc_ = utc_now();
  std::set<std::string> saved_;  // UUIDs of runs and of `coll` sessions that are saved but not yet in the target
  bool finished_ = false;
  std::optional<Database> database_;
};

ResultStore::ResultStore(const fs::path& target, std::string session_uuid, const std::string& command_line)
    : impl_(std::make_unique<Impl>(target, std::move(session_uuid), command_line)) {}
ResultStore::~ResultStore() = default;
void ResultStore::save(const RunRecord& run) { impl_->save(run); }
void ResultStore::save_collectives(const std::string& session_uuid, const std::function<void(Database&)>& write) {
  impl_->save_collectives(session_uuid, write);
}
void ResultStore::mark_incomplete(const std::string& reason) { impl_->mark_incomplete(reason); }
void ResultStore::finish(std::chrono::milliseconds patience) { impl_->finish(patience); }
const fs::path& ResultStore::target() const { return impl_->target(); }
const fs::path& ResultStore::partial() const { return impl_->partial(); }
const std::string& ResultStore::note() const { return impl_->note(); }

StoreHeader read_store_header(const fs::path& file) {
  // Source of the layout: https://www.sqlite.org/fileformat.html, "The Database Header".
  constexpr std::string_view kMagic{"SQLite format 3\0", 16};
  constexpr std::size_t kUserVersion = 60, kApplicationId = 68;
  const fs::file_status status = look_at(file);
  if (!fs::exists(status)) return {};
  if (fs::is_other(status)) return {StoreHeader::Kind::kNotSqlite, 0};  // reading a pipe would wait for its writer
  std::array<unsigned char, 100> header{};
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t got = descriptor < 0 ? -1 : ::read(descriptor, header.data(), header.size());
  const int problem = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (got < 0) {
    throw Error(Errc::kIo,
                fmt::format("{}: cannot be read ({}); use another --db", file.string(), std::strerror(problem)));
  }
  if (got == 0) return {StoreHeader::Kind::kEmpty, 0};
  const bool sqlite =
      got == static_cast<ssize_t>(header.size()) && std::memcmp(header.data(), kMagic.data(), kMagic.size()) == 0;
  if (!sqlite) return {StoreHeader::Kind::kNotSqlite, 0};
  const std::span bytes(header);
  const bool ours = big_endian(bytes.subspan<kApplicationId, 4>()) == schema_pragma(schema_sql(), "application_id");
  const std::uint32_t page = (std::uint32_t{bytes[16]} << 8) | bytes[17];
  const bool says_size = big_endian(bytes.subspan<24, 4>()) == big_endian(bytes.subspan<92, 4>());
  const std::uint64_t size = std::uint64_t{page == 1 ? 65536 : page} * big_endian(bytes.subspan<28, 4>());
  const bool wal = bytes[18] == 2 || bytes[19] == 2;
  return {ours ? StoreHeader::Kind::kOurs : StoreHeader::Kind::kForeign, big_endian(bytes.subspan<kUserVersion, 4>()),
          says_size ? size : 0, wal};
}

std::string wal_refusal(const fs::path& file) {
  return fmt::format(
      "another program has set its journal mode to WAL; close that program, then run: sqlite3 {} "
      "'PRAGMA journal_mode = DELETE'",
      file.string());
}

bool is_cut_off(const fs::path& file, const StoreHeader& header) {
  std::error_code ignored, problem;
  // SQLite can restore the file from a journal. Look for the journal first and read the size afterwards, because a
  // transaction may end between the two.
  if (fs::exists(file.string() + "-journal", ignored)) return false;
  const std::uintmax_t size = fs::file_size(file, problem);
  return !problem && size < header.bytes;
}

bool knows_schema_version(std::uint32_t version) {
  return version == schema_pragma(schema_sql(), "user_version") ||
         version == schema_pragma(schema_2_sql(), "user_version");
}

std::string known_schema_versions() {
  return fmt::format("{} and {}", schema_pragma(schema_sql(), "user_version"),
                     schema_pragma(schema_2_sql(), "user_version"));
}

void check_store_header(const fs::path& file) {
  const fs::file_status status = look_at(file);
  if (fs::is_directory(status)) throw Error(Errc::kIo, file.string() + ": is a directory; give --db a file's name");
  if (fs::is_other(status)) {
    throw Error(Errc::kIo, file.string() + ": is a pipe or a device, not a file; use another --db, or --no-db");
  }
  std::error_code ignored;
  if (!fs::exists(status) && fs::is_symlink(file, ignored)) {
    throw Error(Errc::kIo, file.string() + ": is a link to a file that is not there; create that, or use another --db");
  }
  const StoreHeader header = read_store_header(file);
  const std::string other = "it was left untouched, use another --db";
  switch (header.kind) {
    case StoreHeader::Kind::kAbsent:
    case StoreHeader::Kind::kEmpty: return;
    case StoreHeader::Kind::kNotSqlite: throw Error(Errc::kIo, file.string() + ": is not a SQLite database; " + other);
    case StoreHeader::Kind::kForeign:
      throw Error(Errc::kIo, fmt::format("{}: is another program's database (its application_id is not ours); {}",
                                         file.string(), other));
    case StoreHeader::Kind::kOurs: break;
  }
  if (header.wal) throw Error(Errc::kIo, fmt::format("{}: {}", file.string(), wal_refusal(file)));
  if (knows_schema_version(header.schema_version)) {
    if (!is_cut_off(file, header)) return;
    throw Error(Errc::kIo, fmt::format("{}: is cut off after {} of {} bytes; restore a copy, or use another --db",
                                       file.string(), fs::file_size(file, ignored), header.bytes));
  }
  throw Error(Errc::kIo, fmt::format("{}: has schema version {}, this program writes versions {}; {} or the hvd_bench "
                                     "that wrote it",
                                     file.string(), header.schema_version, known_schema_versions(), other));
}

std::string new_uuid() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(Errc::kIo, std::string("getrandom failed: ") + std::strerror(errno));
  }
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);  // version 4, variant 1. Source: RFC 4122, 4.4
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::uint64_t high = 0, low = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    high = (high << 8) | bytes[i];
    low = (low << 8) | bytes[8 + i];
  }
  const std::string h = hex64(high), l = hex64(low);
  return fmt::format("{}-{}-{}-{}-{}", h.substr(0, 8), h.substr(8, 4), h.substr(12), l.substr(0, 4), l.substr(4));
}

std::string utc_now() {
  const auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 40> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text.data(), length), now.time_since_epoch().count() % 1000);
}

}  // namespace hvd::bench
