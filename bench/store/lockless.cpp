#include "bench/store/lockless.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

// SQLite locks bytes 0x40000000 to 0x400001ff, so a lock on the next byte is in nobody's way.
// Source: https://www.sqlite.org/fileformat.html, "The Lock-Byte Page".
constexpr off_t kUnusedByte = 0x40000200;
constexpr const char* kSuffix = ".replacing";
constexpr std::chrono::milliseconds kPoll{20};
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

class Descriptor {
 public:
  Descriptor(const fs::path& file, int flags, mode_t mode = 0)
      : value_(::open(file.c_str(), flags | O_CLOEXEC, mode)) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int value() const { return value_; }

 private:
  const int value_;
};

[[noreturn]] void fail(const fs::path& file, const std::string& doing, int problem) {
  throw Error(Errc::kIo, fmt::format("{}: {} failed ({}); use another --db", file.string(), doing,
                                     std::error_code(problem, std::generic_category()).message()));
}

void write_all(int descriptor, const char* data, std::size_t bytes, const fs::path& file) {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, data, bytes);
    if (written < 0) fail(file, "writing", errno);
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

Error removed(const fs::path& file) {
  return {Errc::kIo, file.string() + ": somebody removed it while this program used it, so the store stays as it was"};
}

void require_no_journal(const fs::path& store) {
  const std::string journal = store.string() + "-journal";
  std::error_code ignored;
  if (!fs::exists(journal, ignored)) return;
  throw Error(Errc::kIo, journal +
                             ": a program on a host with file locks writes to the store, or was killed; wait for "
                             "its end, or merge the store into a new one with hvdb merge");
}

}  // namespace

std::string lock_fault(const fs::path& file) {
  const Descriptor opened(file, O_RDONLY);
  if (opened.value() < 0) return {};
  struct flock lock {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kUnusedByte;
  lock.l_len = 1;
  if (::fcntl(opened.value(), F_SETLK, &lock) == 0) return {};
  switch (const int problem = errno; problem) {
    case ENOSYS:
    case ENOLCK:
    case EOPNOTSUPP:
    case EINVAL: return std::error_code(problem, std::generic_category()).message();
    default: return {};
  }
}

std::string no_locks_note(const fs::path& file, const std::string& fault) {
  return fmt::format(
      "{}: its file system has no file locks ({}): runs are added to a store by replacing the store with a copy, and a "
      "file that changes while it is read is refused; read such a file again, or mount the file system with locks "
      "(Lustre: -o flock)",
      file.string(), fault);
}

StoreState store_state(const fs::path& file) {
  const Descriptor opened(file, O_RDONLY);
  struct stat status {};
  if (opened.value() < 0 && errno == ENOENT) return {};
  if (opened.value() < 0 || ::fstat(opened.value(), &status) != 0) fail(file, "reading", errno);
  constexpr off_t kChangeCounter = 24;  // Source: https://www.sqlite.org/fileformat.html, "File change counter"
  StoreState state{status.st_ino, status.st_size, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec, 0};
  if (::pread(opened.value(), &state.transactions, sizeof state.transactions, kChangeCounter) < 0)
    fail(file, "reading", errno);
  return state;
}

WriteLock::WriteLock(const fs::path& store, std::chrono::milliseconds patience) : file_(store.string() + kSuffix) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    descriptor_ = ::open(file_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (descriptor_ >= 0) return;
    if (errno != EEXIST) fail(file_, "creating", errno);
    if (std::chrono::steady_clock::now() >= end) {
      throw Error(Errc::kIo, fmt::format("{}: another program adds runs to {}, or was killed while it did; wait for "
                                         "its end, or remove {} if no program writes to the store",
                                         file_.string(), store.string(), file_.filename().string()));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

WriteLock::~WriteLock() {
  if (owns(file_)) ::unlink(file_.c_str());
  ::close(descriptor_);
}

bool WriteLock::owns(const fs::path& name) const {
  struct stat mine {
  }, named{};
  if (::fstat(descriptor_, &mine) != 0 || ::lstat(name.c_str(), &named) != 0) return false;
  return mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

void WriteLock::require_held() const {
  if (!owns(file_)) throw removed(file_);
}

void WriteLock::copy_from(const fs::path& store) const {
  const Descriptor from(store, O_RDONLY);
  struct stat status {};
  if (from.value() < 0 || ::fstat(from.value(), &status) != 0) fail(store, "reading", errno);
  std::vector<char> block(kBlockBytes);
  ssize_t got = 0;
  while ((got = ::read(from.value(), block.data(), block.size())) > 0) {
    write_all(descriptor_, block.data(), static_cast<std::size_t>(got), file_);
  }
  if (got < 0) fail(store, "reading", errno);
  if (::fchmod(descriptor_, status.st_mode & 07777) != 0) fail(file_, "setting permissions", errno);
}

void WriteLock::rename_to(const fs::path& store, const std::string& unique) const {
  // If somebody removes the lock just now, its name may become another writer's unfinished copy. So a second name,
  // which only this process uses, is checked and renamed. A file system without hard links leaves only the first name.
  // On NFS, link() asks the server, and owns() may ask a cache for a name that it has known for long.
  const fs::path second = fmt::format("{}.{}{}", store.string(), unique, kSuffix);
  const bool linked = ::link(file_.c_str(), second.c_str()) == 0;
  const fs::path& name = linked ? second : file_;
  const bool is_gone = !linked && (errno == ENOENT || errno == ESTALE);
  const bool is_mine = !is_gone && owns(name);
  const bool renamed = is_mine && ::rename(name.c_str(), store.c_str()) == 0;
  const int problem = errno;
  if (linked && !renamed) ::unlink(second.c_str());
  if (!is_mine) throw removed(file_);
  if (!renamed) fail(store, "replacing", problem);
}

void replace_store(const fs::path& store, const WriteLock& lock, const std::string& unique,
                   const std::function<void(const fs::path& copy)>& change) {
  require_no_journal(store);
  const StoreState before = store_state(store);
  lock.copy_from(store);
  ::unlink((lock.file().string() + "-journal").c_str());  // SQLite would roll it back, whoever left it
  change(lock.file());
  require_no_journal(store);
  if (store_state(store) != before) throw Error(Errc::kIo, store.string() + ": another program changed it");
  lock.rename_to(store, unique);
}

}  // namespace hvd::bench
