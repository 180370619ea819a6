// Memory that an arena gives back to the system must read as zero. give_back() returns 0 if the system keeps the pages.
#include "models/onednn/host_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace hvd::models::onednn::host_arena_test {
namespace {

std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

bool all(std::span<const std::byte> bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte byte) { return byte == std::byte(value); });
}

TEST(HostArena, GivesBackWholePages) {
  HostArena arena(8 * page(), "a test");
  std::fill(arena.bytes().begin(), arena.bytes().end(), std::byte{1});
  EXPECT_EQ(arena.give_back(1, 5 * page() + 1), 4 * page());
  EXPECT_TRUE(all(arena.bytes().first(page()), 1));
  EXPECT_TRUE(all(arena.bytes().subspan(page(), 4 * page()), 0));
  EXPECT_TRUE(all(arena.bytes().subspan(5 * page()), 1));
  EXPECT_EQ(arena.give_back(1, page()), 0U);
}

TEST(HostArena, LockedMemoryIsZeroButNotGivenBack) {
  HostArena arena(4 * page(), "a test");
  std::fill(arena.bytes().begin(), arena.bytes().end(), std::byte{1});
  // Calls mlock through syscall(), because AddressSanitizer replaces mlock() by a function that does nothing.
  if (syscall(SYS_mlock, arena.bytes().data(), arena.bytes().size()) != 0) {
    GTEST_SKIP() << "this process may not lock memory";
  }
  EXPECT_EQ(arena.give_back(0, 4 * page()), 0U);
  EXPECT_TRUE(all(arena.bytes(), 0));
}

}  // namespace
}  // namespace hvd::models::onednn::host_arena_test
