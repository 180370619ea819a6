#include "bench/store/lockless.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "bench/store/host_facts.h"
#include "bench/store/result_store.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

// SQLite locks bytes 0x40000000 to 0x400001ff, so a lock on the next byte is in nobody's way.
// Source: https://www.sqlite.org/fileformat.html, "The Lock-Byte Page".
constexpr off_t kUnusedByte = 0x40000200;
constexpr const char* kLockSuffix = ".write-lock";
constexpr const char* kCopySuffix = ".replacing";
constexpr std::chrono::milliseconds kPoll{20};
constexpr const char* kUnknown = "unknown";

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

// The words of a lock file: host, process, boot of the host, PID namespace, time, random number. Boot and namespace
// together give the number of a process its meaning.
constexpr std::size_t kHost = 0, kProcess = 1, kBoot = 2, kNamespace = 3, kSince = 4, kWords = 6;

std::vector<std::string> machine() {
  std::error_code problem;
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  const std::string processes = fs::read_symlink("/proc/self/ns/pid", problem).string();
  if (boot.empty() || problem) return {kUnknown, kUnknown};
  return {boot, processes};
}

std::string content_of_this_process() {
  return fmt::format("{} {} {} {} {}\n", host_name(), ::getpid(), fmt::join(machine(), " "), utc_now(), new_uuid());
}

/// Returns the content of a lock file; empty if there is no file.
std::string read_lock(const fs::path& file) {
  std::ifstream in(file);
  std::array<char, 1000> text{};
  in.read(text.data(), text.size());
  return {text.data(), static_cast<std::size_t>(in.gcount())};
}

std::vector<std::string> words_of(const std::string& content) {
  std::istringstream in(content);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// Returns false if the file exists. Errors: io.
bool create_lock(const fs::path& file, const std::string& content) {
  const Descriptor created(file, O_CREAT | O_EXCL | O_WRONLY, 0644);
  if (created.value() < 0) {
    if (errno == EEXIST) return false;
    fail(file, "creating", errno);
  }
  if (::write(created.value(), content.data(), content.size()) == static_cast<ssize_t>(content.size())) return true;
  const int problem = errno;
  ::unlink(file.c_str());
  fail(file, "writing", problem);
}

bool is_stale(const std::string& content) {
  const std::vector<std::string> words = words_of(content), here = machine();
  if (words.size() != kWords || here[0] == kUnknown) return false;
  if (words[kBoot] != here[0] || words[kNamespace] != here[1]) return false;
  const std::string& process = words[kProcess];
  if (process.size() > 9 || process.find_first_not_of("0123456789") != std::string::npos) return false;
  const int id = std::stoi(process);
  return id > 0 && ::kill(id, 0) != 0 && errno == ESRCH;
}

/// Removes a lock file whose process has ended. Two processes may find the same stale file. If one of them removed it
/// and a third process locked anew, the other must not remove the new file. So only the process that holds a second
/// lock file looks again, and removes the file.
void remove_if_stale(const fs::path& file) {
  if (!is_stale(read_lock(file))) return;
  const std::string guard = file.string() + ".breaking";
  if (!create_lock(guard, content_of_this_process())) return;
  if (is_stale(read_lock(file))) ::unlink(file.c_str());
  ::unlink(guard.c_str());
}

void require_no_journal(const fs::path& store) {
  const std::string journal = store.string() + "-journal";
  std::error_code ignored;
  if (!fs::exists(journal, ignored)) return;
  throw Error(Errc::kIo, journal +
                             ": a program on a host with file locks writes to the store, or was killed; wait for "
                             "its end, or merge the store into a new one with hvdb merge");
}

/// Removes the copies of killed writers. They are nobody's, because only one writer holds the lock file.
void remove_old_copies(const fs::path& store) {
  const std::string prefix = store.filename().string() + ".";
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(store.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(kCopySuffix)) fs::remove(entry.path(), ignored);
  }
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

WriteLock::WriteLock(const fs::path& store, std::chrono::milliseconds patience)
    : file_(store.string() + kLockSuffix), content_(content_of_this_process()) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!create_lock(file_, content_)) {
    remove_if_stale(file_);
    std::error_code ignored;
    if (std::chrono::steady_clock::now() >= end && fs::exists(file_, ignored)) {
      const std::vector<std::string> words = words_of(read_lock(file_));
      const bool known = words.size() == kWords;
      throw Error(
          Errc::kIo,
          fmt::format("{}: {} holds this lock{}; wait for its end, or remove the file if that process "
                      "has ended",
                      file_.string(),
                      known ? fmt::format("process {} on {}", words[kProcess], words[kHost]) : "an unknown process",
                      known ? " since " + words[kSince] : ""));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

WriteLock::~WriteLock() {
  if (is_held()) ::unlink(file_.c_str());
}

bool WriteLock::is_held() const { return read_lock(file_) == content_; }

void replace_store(const fs::path& store, const WriteLock& lock, const std::string& unique,
                   const std::function<void(const fs::path& copy)>& change) {
  const fs::path copy = fmt::format("{}.{}{}", store.string(), unique, kCopySuffix);
  try {
    remove_old_copies(store);
    require_no_journal(store);
    const StoreState before = store_state(store);
    fs::copy_file(store, copy);
    require_no_journal(store);
    change(copy);
    require_no_journal(store);
    if (store_state(store) != before || !lock.is_held()) {
      throw Error(Errc::kIo, store.string() + ": another program changed it, or removed its lock file");
    }
    fs::rename(copy, store);
  } catch (const fs::filesystem_error& error) {
    ::unlink(copy.c_str());
    throw Error(Errc::kIo,
                fmt::format("{}: cannot be replaced by a copy ({}); free space, or check the permissions of its "
                            "folder",
                            store.string(), error.code().message()));
  } catch (...) {
    ::unlink(copy.c_str());
    throw;
  }
}

}  // namespace hvd::bench
