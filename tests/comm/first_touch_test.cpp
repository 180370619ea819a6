// Checks that each rank allocates the pages of its own part of the memory that the ranks of a node share. Linux takes a
// page from the NUMA node of the processor that first asks for it, so the allocating rank decides where the page lies.
// ctest runs this program as:
//   mpirun -np N first_touch_test [ranks per node]
// SharedMemory::commit() allocates pages with posix_fallocate(). This program defines its own posix_fallocate(), which
// counts new pages. The program uses no GoogleTest, because a failing rank must still take part in every collective.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/shm/segment.h"

namespace {

using namespace hvd;
using namespace std::chrono_literals;

constexpr std::size_t kBlockBytes = 512;  // unit of st_blocks on every file system

/// One call of posix_fallocate() by this rank.
struct Taken {
  std::size_t offset, bytes;
  std::size_t fresh;       ///< bytes of pages that no rank had allocated before
  std::size_t file_bytes;  ///< size of the whole file
  int node;                ///< NUMA node on which this thread ran; -1: the thread moved to another node
};
std::vector<Taken>& taken() {
  static std::vector<Taken> calls;
  return calls;
}

int current_node() {
  unsigned node = 0;
  return ::syscall(SYS_getcpu, nullptr, &node, nullptr) == 0 ? static_cast<int>(node) : -1;
}

struct stat status_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) std::perror("fstat");
  return status;
}

bool is_ours(int fd) {
  std::array<char, 256> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return ::readlink(link.c_str(), target.data(), target.size() - 1) > 0 &&
         std::string(target.data()).find("/dev/shm/hvd_bench.") == 0;
}

/// Checks that this rank called posix_fallocate() once since the last check, for its own part, which begins at
/// `offset`. Returns the fault or "".
std::string check_one(std::size_t offset, std::size_t file_bytes) {
  const std::vector<Taken> calls = std::exchange(taken(), {});
  if (calls.size() != 1) return "this rank took memory " + std::to_string(calls.size()) + " times, not once";
  const Taken& call = calls.front();
  std::string text = "[" + std::to_string(call.offset) + ", +" + std::to_string(call.bytes) + ") of " +
                     std::to_string(call.file_bytes) + ", " + std::to_string(call.fresh) + " bytes of it new";
  const bool own = call.offset == offset && call.file_bytes == file_bytes;
  return own && call.fresh == call.bytes ? "" : text;
}

/// Like check_one(), for memory that is divided into equal parts.
std::string check_own_part(const comm::Topology& where) {
  if (taken().empty()) return "this rank took no memory";
  const std::size_t bytes = taken().front().bytes;
  return check_one(bytes * static_cast<std::size_t>(where.local_rank),
                   bytes * static_cast<std::size_t>(where.local_size));
}

/// Checks that all pages of `memory` lie on `node`, if the kernel allows the query. Returns the fault or "".
std::string check_node(std::span<std::byte> memory, int node) {
  if (node < 0) return "";
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<void*> pages;
  for (std::size_t at = 0; at < memory.size(); at += page) pages.push_back(memory.data() + at);
  std::vector<int> nodes(pages.size(), -1);
  if (::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) {
    std::printf("not checked: where pages lie: move_pages() is not allowed here\n");
    return "";
  }
  const auto elsewhere = std::count_if(nodes.begin(), nodes.end(), [&](int its) { return its != node; });
  std::printf("node %d: %zu of %zu pages\n", node, pages.size() - static_cast<std::size_t>(elsewhere), pages.size());
  return elsewhere == 0 ? "" : std::to_string(elsewhere) + " pages are not on node " + std::to_string(node);
}

int say(const comm::Communicator& c, const char* what, const std::string& problem) {
  if (problem.empty()) return 0;
  std::printf("FAILED rank %d: %s: %s\n", c.topology().rank, what, problem.c_str());
  return 1;
}

int check_all(comm::Communicator& c) {
  const comm::Topology& where = c.topology();
  const auto deadline = [] { return Deadline::after(20s); };
  const comm::Segment::Part cell = comm::Segment::part_of(where.local_rank);
  const std::size_t segment = comm::Segment::bytes_for(where.local_size);
  int failures = say(c, "control segment", check_one(cell.offset, segment));

  constexpr std::size_t kArena = (5 << 20) + 100;
  const auto arena = c.data().allocate(kArena, deadline());
  const int node = taken().empty() ? -1 : taken().front().node;
  failures += say(c, "arena", check_own_part(where));
  std::fill(arena->bytes().begin(), arena->bytes().end(), std::byte{1});
  failures += say(c, "arena", check_node(arena->bytes(), node));

  // This memory is not registered and too long for slots, so the first operation of each kind allocates staging blocks.
  const auto n = static_cast<std::size_t>(where.size);
  std::vector<float> sum(100000, 1), share(100000, 1), all(n * share.size());
  c.data().all_reduce(sum.data(), sum.size(), DataType::kF32, ReduceOp::kSum, deadline());
  const bool one_node = where.nodes == 1;
  if (one_node) failures += say(c, "staging of an all-reduce", check_own_part(where));
  taken().clear();
  const std::vector<std::size_t> counts(n, share.size());
  c.data().all_gather(all.data(), share.data(), counts, DataType::kF32, deadline());
  if (one_node) failures += say(c, "staging of an all-gather", check_own_part(where));
  c.control().barrier(deadline());
  return failures;
}

}  // namespace

extern "C" int posix_fallocate(int fd, off_t offset, off_t length) {
  const auto take = [&] { return ::fallocate(fd, 0, offset, length) == 0 ? 0 : errno; };
  if (!is_ours(fd)) return take();
  ::flock(fd, LOCK_EX);  // other ranks wait, so that only this rank's pages are counted
  const int node = current_node();
  const struct stat before = status_of(fd);
  const int code = take();
  const struct stat after = status_of(fd);
  const bool moved = current_node() != node;
  ::flock(fd, LOCK_UN);
  taken().push_back({static_cast<std::size_t>(offset), static_cast<std::size_t>(length),
                     static_cast<std::size_t>(after.st_blocks - before.st_blocks) * kBlockBytes,
                     static_cast<std::size_t>(after.st_size), moved ? -1 : node});
  return code;
}

int main(int argc, char** argv) {
  comm::CommOptions options;
  if (argc > 1) options.ranks_per_node = std::atoi(argv[1]);
  try {
    const auto c = comm::make_mpi(options);
    const int failures = check_all(*c);
    if (failures == 0 && c->topology().rank == 0) std::printf("good: %d ranks\n", c->topology().size);
    return failures == 0 ? 0 : 1;
  } catch (const Error& error) {
    std::printf("FAILED with %s: %s\n", std::string(name(error.code())).c_str(), error.what());
    return exit_code(error.code());
  }
}
