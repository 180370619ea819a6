// Zeroed memory for the backend, on huge pages if the system provides them. A step reads gigabytes. With 4 KiB pages,
// TLB misses would take several percent of the step's time.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace hvd::models::onednn {

class HostArena {
 public:
  HostArena() = default;
  /// Allocates `bytes` of zeroed memory. Errors: out_of_memory; the text names `what` and the size.
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
  /// Gives the whole pages within bytes [from, to) back to the system. Bytes of these pages are zero afterwards.
  /// Returns the number of bytes given back, which take no memory until they are next written; 0 if the system refuses.
  std::size_t give_back(std::size_t from, std::size_t to) noexcept;

 private:
  std::span<std::byte> memory_;
  std::size_t mapped_ = 0;
};

/// Checks that there is address space for oneDNN. Call before oneDNN compiles an operation: oneDNN 2.6 writes to a null
/// pointer if it gets no memory for a kernel. Errors: out_of_memory if a limit (ulimit -v) leaves too little space.
void require_address_space();

/// Asks the system to use huge pages for `memory`. Ignores a refusal.
void advise_huge_pages(std::span<std::byte> memory) noexcept;

}  // namespace hvd::models::onednn
