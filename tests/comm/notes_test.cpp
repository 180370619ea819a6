// Tests notes, which are small broadcasts on one node. The root of a note does not wait, so ranks may find a
// disagreement only in a later call.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/shm/segment.h"
#include "tests/base/errors.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/loopback_world.h"

namespace hvd::test::notes_test {
namespace {

using comm::Communicator;

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

/// Returns "" if all ranks are in step and compute the right result.
std::string in_step(Communicator& c) {
  return check_all_reduce(c, {100, DataType::kF32, ReduceOp::kSum, Memory::kPlain});
}

TEST(Notes, ArriveWhoeverSendsThemAndWhoeverIsLate) {
  for (const int ranks : {2, 3, 5}) {
    const auto results = run_loopback(ranks, {}, 0, [](Communicator& c) -> std::string {
      const int me = c.topology().rank;
      std::uint32_t random = 17U + static_cast<std::uint32_t>(me);
      for (int i = 0; i < 300; ++i) {
        const int root = i / 7 % c.topology().size;
        const std::size_t bytes = i % 5 == 0 ? comm::kNoteBytes : static_cast<std::size_t>(i) + 1;
        const std::vector<std::uint8_t> sent(bytes, static_cast<std::uint8_t>(i));
        std::vector<std::uint8_t> got = me == root ? sent : std::vector<std::uint8_t>(bytes);
        random = random * 1664525U + 1013904223U;
        if (random >> 29 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random >> 22 & 255U));
        c.data().broadcast(got.data(), bytes, root, soon());
        if (got != sent) return "broadcast " + std::to_string(i) + " of " + std::to_string(bytes) + " bytes is wrong";
        if (i % 31 == 0) c.control().barrier(soon());
        if (i % 67 == 0) {
          if (std::string problem = in_step(c); !problem.empty()) return problem;
        }
      }
      return "";
    });
    expect_good(results);
  }
}

TEST(Notes, TheirSenderDoesNotWait) {
  std::atomic<bool> sent{false};
  const auto results = run_loopback(2, {}, 0, [&](Communicator& c) -> std::string {
    int value = c.topology().rank == 0 ? 5 : 0;
    if (c.topology().rank == 1) {
      const Deadline deadline = soon();
      while (!sent && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!sent) return "the sender waits for its reader";
    }
    c.data().broadcast(&value, sizeof value, 0, soon());
    sent = true;
    return value == 5 ? "" : "wrong";
  });
  expect_good(results);
}

TEST(Notes, ADifferentSizeIsFoundByAllAtTheirNextSynchronisation) {
  const auto results = run_loopback(3, {}, 0, [](Communicator& c) -> std::string {
    std::vector<std::uint8_t> data(16);
    const bool last = c.topology().rank == 2;
    const std::string first = error_of([&] { c.data().broadcast(data.data(), last ? 16 : 8, 1, soon()); });
    if (first.empty() == last) return "first: " + first;
    const std::string second = last ? "" : error_of([&] { c.control().barrier(soon()); });
    return first + second + in_step(c);
  });
  for (const auto& result : results) {
    EXPECT_EQ(result,
              "mismatch: broadcast 1: rank 0 (host node0) has 8 bytes from rank 1, rank 2 (host node0) has 16 bytes "
              "from rank 1; all ranks must make the same calls with the same arguments");
  }
}

TEST(Notes, DifferentRootsAreFoundWithoutADeadline) {
  const auto results = run_loopback(2, {}, 0, [](Communicator& c) -> std::string {
    int value = 0;
    const int other = 1 - c.topology().rank;
    const std::string text = error_of([&] { c.data().broadcast(&value, sizeof value, other, soon()); });
    return text + in_step(c);
  });
  for (const auto& result : results) {
    EXPECT_EQ(result,
              "mismatch: broadcast 1: rank 0 (host node0) has 4 bytes from rank 1, rank 1 (host node0) has 4 bytes "
              "from rank 0; all ranks must make the same calls with the same arguments");
  }
}

TEST(Notes, ASenderInAnotherCallAndOneThatNobodyReadsAreFound) {
  for (const bool sender_is_elsewhere : {true, false}) {
    const auto results = run_loopback(3, {}, 0, [&](Communicator& c) -> std::string {
      int value = 0;
      const bool elsewhere = c.topology().rank == (sender_is_elsewhere ? 1 : 2);
      std::string text = error_of([&] {
        if (!elsewhere) c.data().broadcast(&value, sizeof value, 1, soon());
        if (elsewhere || !sender_is_elsewhere) c.control().barrier(soon());
      });
      return text + in_step(c);
    });
    const std::string both =
        sender_is_elsewhere ? "rank 0 (host node0) has 4 bytes from rank 1, rank 1 (host node0) makes another call"
                            : "rank 0 (host node0) has 4 bytes from rank 1, rank 2 (host node0) makes another call";
    for (const auto& result : results)
      EXPECT_NE(result.find("broadcast 1: " + both + "; all"), std::string::npos) << result;
  }
}

}  // namespace
}  // namespace hvd::test::notes_test
