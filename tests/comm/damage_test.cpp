// Each test repeats a fault that fault_injection_test found, but without that test's races.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/loopback/loopback.h"
#include "tests/base/errors.h"
#include "tests/comm/faulty_transport.h"

namespace hvd::test::damage_test {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;

/// Runs `collective` on two one-rank nodes and inverts bit `bit` of the message with number `message` from rank 1.
/// Returns rank 0's error.
std::string error_after_flip(std::uint64_t message, std::size_t bit,
                             const std::function<void(Communicator&)>& collective) {
  std::array<RankFaults, 2> faults;
  faults[1].kind = FaultKind::kFlip;
  faults[1].point = message;
  faults[1].bit = bit;
  auto world = comm::make_wrapped_loopback(2, {}, 1, [&](int rank, std::unique_ptr<comm::Transport> inner) {
    return std::make_unique<FaultyTransport>(std::move(inner), faults[static_cast<std::size_t>(rank)]);
  });
  const std::jthread other([&] { collective(*world[1]); });  // returns at once, because a send does not wait
  return error_of([&] { collective(*world[0]); });
}

TEST(DamagedLength, OfAMessageIsAMismatchAndNotAnAllocation) {
  const std::string gathered = error_after_flip(0, 60, [](Communicator& c) {  // adds 2^60 bytes to the length
    c.control().gather(comm::Bytes(5), Deadline::after(10s));
  });
  expect_contains(gathered, "mismatch: a message of rank 1 (host node1) in gather 1");
  const std::string sent =
      error_after_flip(0, 60, [](Communicator& c) { c.control().broadcast(comm::Bytes(5), 1, Deadline::after(10s)); });
  expect_contains(sent, "mismatch: a message of rank 1 (host node1) in broadcast 1 claims");
}

TEST(DamagedLength, InsideAPackedMessageIsAMismatchAndNotAReadBeyondIt) {
  const std::string error = error_after_flip(1, 20, [](Communicator& c) {  // adds 1 MiB to the length
    c.control().gather(comm::Bytes(5), Deadline::after(10s));
  });
  expect_contains(error, "claims 1048581 bytes, but can have 5 at most");
}

TEST(Abort, FailsCollectivesThatNeedNobody) {
  // Rank 0 waits for no message, so it notices the abort only if the collective checks for aborts.
  auto world = comm::make_loopback(2, {}, 1);
  world[0]->control().abort("over");
  std::vector<int> data(2);
  const std::vector<std::size_t> counts{2, 0};
  EXPECT_THROW(world[0]->data().all_gather(data.data(), data.data(), counts, DataType::kI32, Deadline::after(10s)),
               Error);
}

TEST(FailedWait, LeavesNoReceiveBehindThatALateMessageCouldFill) {
  auto world = comm::make_loopback(2, {}, 1);
  const std::vector<std::size_t> counts{1, 1};
  const auto gather = [&](int rank, std::array<int, 2>& data, Deadline deadline) {
    world[static_cast<std::size_t>(rank)]->data().all_gather(data.data(), &data[static_cast<std::size_t>(rank)], counts,
                                                             DataType::kI32, deadline);
  };
  std::array<int, 2> first{1, 0}, second{2, 0}, others{0, 7};
  EXPECT_THROW(gather(0, first, Deadline::after(10ms)), Error);
  gather(1, others, Deadline::after(10s));  // returns, because rank 0's message has arrived
  gather(0, second, Deadline::after(10s));
  EXPECT_EQ(first[1], 0);
  EXPECT_EQ(second[1], 7);
}

}  // namespace
}  // namespace hvd::test::damage_test
