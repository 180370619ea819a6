// Zeroed memory of the backend's own, on huge pages where the system lends them: a step walks over
// gigabytes, and 4 KiB pages cost it several percent in TLB misses.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace hvd::models::onednn {

class HostArena {
 public:
  HostArena() = default;
  /// Errors: out_of_memory, naming `what` and the size.
  HostArena(std::size_t bytes, const char* what);
  HostArena(HostArena&& other) noexcept
      : memory_(std::exchange(other.memory_, {})), mapped_(std::exchange(other.mapped_, 0)) {}
  HostArena& operator=(HostArena&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;
  ~HostArena();

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return memory_; }
  /// The pages within bytes [from, to) become zeros. Returns how many bytes take no memory until they are written to: 0
  /// where the system refuses, else those of all these pages.
  std::size_t give_back(std::size_t from, std::size_t to) noexcept;

 private:
  std::span<std::byte> memory_;
  std::size_t mapped_ = 0;
};

/// To be called before oneDNN compiles an operation: oneDNN 2.6 writes through a null pointer where it gets no memory
/// for a kernel. Errors: out_of_memory where a limit (ulimit -v) leaves little.
void require_address_space();

/// Asks the system for huge pages on the whole pages inside `memory`; a hint, never fails.
void advise_huge_pages(std::span<std::byte> memory) noexcept;

}  // namespace hvd::models::onednn
