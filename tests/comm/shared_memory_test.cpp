// Tests that a process which ends early removes its names from /dev/shm but no other names, and that no rank writes to
// another rank's new memory.
#include "engine/comm/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "tests/base/errors.h"
#include "tests/base/threads.h"

namespace hvd::comm::shared_memory_test {
namespace {

bool there(const std::string& name) {
  return hvd::test::error_of([&] { return SharedMemory::open(name, 4096); }).empty();
}

TEST(SharedMemory, AProcessRemovesItsOwnNamesAndNoOthers) {
  const std::string pid = std::to_string(::getpid());
  const std::string mine = "/hvd_bench." + pid + ".a";
  const std::string another = "/hvd_bench." + pid + "0.a";  // another process, whose id begins with this one's
  const SharedMemory first = SharedMemory::create(mine, 4096);
  const SharedMemory second = SharedMemory::create(another, 4096);
  remove_shared_names();
  EXPECT_FALSE(there(mine));
  EXPECT_TRUE(there(another));
  SharedMemory::unlink(another);
}

/// Returns how many pages of `memory`, which begins at a page boundary, are resident.
std::ptrdiff_t touched_pages(std::span<std::byte> memory) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((memory.size() + page - 1) / page);
  EXPECT_EQ(::mincore(memory.data(), memory.size(), there.data()), 0);
  return std::count_if(there.begin(), there.end(), [](unsigned char page_state) { return (page_state & 1U) != 0; });
}

// The rank that writes a page first decides on which NUMA node the page lies, so the owner must be the first to write.
// first_touch_test tests the same for ranks that are processes.
TEST(SharedMemory, NobodyTouchesTheMemoryThatARankIsGiven) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  auto ranks = make_loopback(2);
  std::vector<std::ptrdiff_t> before(ranks.size()), after(ranks.size());
  hvd::test::on_threads(ranks.size(), [&](std::size_t r) {
    const auto memory = ranks[r]->data().allocate(kBytes, Deadline::after(std::chrono::seconds(20)));
    before[r] = touched_pages(memory->bytes());
    ranks[r]->control().barrier(Deadline::after(std::chrono::seconds(20)));
    std::fill(memory->bytes().begin(), memory->bytes().end(), std::byte{1});
    after[r] = touched_pages(memory->bytes());
    ranks[r]->control().barrier(Deadline::after(std::chrono::seconds(20)));
  });
  const auto pages = static_cast<std::ptrdiff_t>(kBytes) / ::sysconf(_SC_PAGESIZE);
  EXPECT_EQ(before, (std::vector<std::ptrdiff_t>{0, 0}));
  EXPECT_EQ(after, (std::vector<std::ptrdiff_t>{pages, pages}));
}

}  // namespace
}  // namespace hvd::comm::shared_memory_test
