// Memory that several ranks can access, and the sleep of a thread on a word of it (futex).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace hvd::comm {

/// Sleeps while `word`, which may be in memory shared between processes, is `expected`, for at most `timeout`. It may
/// return early, so call it in a loop. Source: futex(2).
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout) noexcept;
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

/// Owns one mapping that several ranks can access: POSIX shared memory for processes, anonymous memory for threads.
class SharedMemory {
 public:
  /// For threads. The memory is zeroed. Errors: out_of_memory.
  static SharedMemory anonymous(std::size_t bytes);
  /// Creates `name` ("/hvd_bench.1234.0") with mode 0600 and size `bytes`. Memory is allocated later, by commit().
  /// Errors: io if the name exists or /dev/shm is not usable; out_of_memory.
  static SharedMemory create(const std::string& name, std::size_t bytes);
  /// Maps the existing `name`. Errors: io; out_of_memory.
  static SharedMemory open(const std::string& name, std::size_t bytes);
  /// Removes the name; mappings stay. Does nothing if the name does not exist.
  static void unlink(const std::string& name) noexcept;

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  /// Allocates memory for [offset, offset + bytes), so that a full /dev/shm causes an error here and not a SIGBUS
  /// during a training step. The pages come from the caller's NUMA node.
  /// Errors: out_of_memory, saying how much is needed and how much there is.
  void commit(std::size_t offset, std::size_t bytes) const;
  /// Maps the committed pages now, so that the first training step has no page faults for them.
  void populate() const noexcept;
  [[nodiscard]] std::span<std::byte> bytes() const { return {base_, size_}; }

 private:
  SharedMemory(int fd, std::byte* base, std::size_t size) : fd_(fd), base_(base), size_(size) {}
  static SharedMemory map(int fd, std::size_t bytes, const std::string& name);

  int fd_;
  std::byte* base_;
  std::size_t size_;
};

}  // namespace hvd::comm
