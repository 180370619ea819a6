#include "engine/comm/shm/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace hvd::comm {
namespace {

std::string error_text(int code) { return std::generic_category().message(code); }

std::string mebibytes(std::size_t bytes) {
  const std::size_t tenths = (bytes * 10 + (1U << 19)) >> 20;
  return fmt::format("{}.{} MiB", tenths / 10, tenths % 10);
}

// MADV_POPULATE_WRITE, since Linux 5.14. Headers older than those of Debian 12 do not define the name.
constexpr int kPopulateWrite = 23;

}  // namespace

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec relative{seconds.count(), (timeout - seconds).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

SharedMemory SharedMemory::anonymous(std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    throw Error(Errc::kOutOfMemory, fmt::format("cannot allocate {}: {}", mebibytes(bytes), error_text(errno)));
  }
  return {-1, static_cast<std::byte*>(base), bytes};
}

SharedMemory SharedMemory::map(int fd, std::size_t bytes, const std::string& name) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const int code = errno;
    close(fd);
    throw Error(Errc::kOutOfMemory,
                fmt::format("cannot map {} of shared memory {}: {}", mebibytes(bytes), name, error_text(code)));
  }
  return {fd, static_cast<std::byte*>(base), bytes};
}

SharedMemory SharedMemory::create(const std::string& name, std::size_t bytes) {
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) {
    throw Error(Errc::kIo, fmt::format("cannot create shared memory {}: {}; the processes of a host need a /dev/shm "
                                       "that they can write",
                                       name, error_text(errno)));
  }
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int code = errno;
    close(fd);
    unlink(name);
    throw Error(Errc::kOutOfMemory,
                fmt::format("cannot size shared memory {} to {}: {}", name, mebibytes(bytes), error_text(code)));
  }
  try {
    return map(fd, bytes, name);
  } catch (...) {
    unlink(name);
    throw;
  }
}

SharedMemory SharedMemory::open(const std::string& name, std::size_t bytes) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) {
    throw Error(Errc::kIo,
                fmt::format("cannot open shared memory {}, which another process of this host made: {}; all processes "
                            "of a host need one common /dev/shm (containers: --ipc=host, or one memory volume that is "
                            "mounted at /dev/shm in all of them)",
                            name, error_text(errno)));
  }
  return map(fd, bytes, name);
}

void SharedMemory::unlink(const std::string& name) noexcept { shm_unlink(name.c_str()); }

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), base_(std::exchange(other.base_, nullptr)), size_(other.size_) {}

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, size_);
  if (fd_ >= 0) close(fd_);
}

void SharedMemory::commit(std::size_t offset, std::size_t bytes) const {
  if (fd_ < 0 || bytes == 0) return;
  int code = 0;
  do {
    code = posix_fallocate(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code == 0) return;
  struct statvfs info {};
  std::string there;
  if (fstatvfs(fd_, &info) == 0) {
    there = fmt::format("; /dev/shm has {} left of {}", mebibytes(info.f_bavail * info.f_frsize),
                        mebibytes(info.f_blocks * info.f_frsize));
  }
  throw Error(Errc::kOutOfMemory,
              fmt::format("not enough shared memory: the ranks of this host need {}{} ({}); enlarge it (docker run "
                          "--shm-size, mount -o remount,size=... /dev/shm) or use fewer ranks per host",
                          mebibytes(size_), there, error_text(code)));
}

void remove_shared_names() noexcept {
  try {
    const std::string mine = fmt::format("hvd_bench.{}.", getpid());
    std::error_code problem;
    for (std::filesystem::directory_iterator entry("/dev/shm", problem), end; !problem && entry != end;
         entry.increment(problem)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with(mine)) SharedMemory::unlink("/" + name);
    }
  } catch (const std::exception&) {  // out of memory: the names are not removed
    return;
  }
}

void SharedMemory::populate() const noexcept { madvise(base_, size_, kPopulateWrite); }

}  // namespace hvd::comm
