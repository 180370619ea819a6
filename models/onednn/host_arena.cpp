#include "models/onednn/host_arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "engine/base/align.h"
#include "engine/base/error.h"

namespace hvd::models::onednn {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// MADV_COLLAPSE of Linux 6.1. The headers of older C libraries do not define it.
constexpr int kCollapse = 25;
// oneDNN needs less address space than this to compile one operation.
constexpr std::size_t kRoom = std::size_t{64} << 20;

}  // namespace

HostArena::HostArena(std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  // To align the start to a huge page, map one huge page more than needed and then unmap the excess.
  const std::size_t wanted = align_up(bytes, kHugePage);
  void* raw = mmap(nullptr, wanted + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    throw Error(
        Errc::kOutOfMemory,
        fmt::format("cannot map {} bytes for {}; use a smaller batch or image, or fewer ranks per node", bytes, what));
  }
  auto* base = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  const std::size_t head = align_up(address, kHugePage) - address;
  if (head > 0) munmap(base, head);
  if (head < kHugePage) munmap(base + head + wanted, kHugePage - head);
  memory_ = {base + head, bytes};
  mapped_ = wanted;
  advise_huge_pages({base + head, wanted});
#ifdef MADV_POPULATE_WRITE
  // Populate the pages now, so that the first step need not. Errors are ignored: Linux before 5.14 refuses this call.
  (void)madvise(memory_.data(), bytes, MADV_POPULATE_WRITE);
#endif
}

HostArena::~HostArena() {
  if (mapped_ > 0) munmap(memory_.data(), mapped_);
}

std::size_t HostArena::give_back(std::size_t from, std::size_t to) noexcept {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = align_up(from, page);
  const std::size_t end = to / page * page;
  if (begin >= end) return 0;
  if (madvise(memory_.data() + begin, end - begin, MADV_DONTNEED) == 0) return end - begin;
  std::memset(memory_.data() + begin, 0, end - begin);  // madvise() failed, as it does for locked memory
  return 0;
}

void require_address_space() {
  void* const room = mmap(nullptr, kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw Error(Errc::kOutOfMemory, "fewer than " + std::to_string(kRoom >> 20) +
                                        " MiB of address space are left, but compiling the network needs them; raise "
                                        "ulimit -v, or use fewer --ranks or a smaller --batch-size");
  }
  munmap(room, kRoom);
}

void advise_huge_pages(std::span<std::byte> memory) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t head = align_up(address, kHugePage) - address;
  if (memory.size() < head + kHugePage) return;
  const std::size_t whole = (memory.size() - head) / kHugePage * kHugePage;
  (void)madvise(memory.data() + head, whole, MADV_HUGEPAGE);
  // Memory that was already written has small pages. Turn them into huge pages; Linux before 6.1 refuses this call.
  (void)madvise(memory.data() + head, whole, kCollapse);
}

}  // namespace hvd::models::onednn
