// Tests disagreements that only some ranks can find. All ranks must still end at once, although the engine does not
// abort after a mismatch. Planes and engines run with ranks as threads. Deadlines are far longer than a rank may take.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/comm/loopback_world.h"
#include "tests/runtime/ranks.h"

namespace hvd::test::mismatch_test {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;

/// Returns a deadline so late that a rank which waits for it fails the test.
Deadline far_off() { return Deadline::after(kNever); }

class MismatchAtOnce : public testing::Test {
 protected:
  void TearDown() override { EXPECT_LT(Clock::now() - start_, kAtOnce) << "a rank waited for its deadline"; }

 private:
  Clock::time_point start_ = Clock::now();
};

TEST_F(MismatchAtOnce, EnginesWithSmallBroadcastsOfDifferentSizesAllEndWithOneText) {
  EngineOptions options;
  options.deadline = kNever;
  for (const int ranks : {2, 3}) {
    const auto outcomes = on_ranks(ranks, options, [&](Engine& engine, int rank) {
      std::array<std::uint8_t, 16> data{};
      engine.broadcast(data.data(), rank == ranks - 1 ? 16 : 8, 0);
      engine.barrier();
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, Errc::kMismatch) << outcome.text;
      EXPECT_EQ(outcome.text, outcomes.front().text);
      EXPECT_NE(outcome.text.find("has 8 bytes from rank 0, rank "), std::string::npos) << outcome.text;
    }
  }
}

TEST_F(MismatchAtOnce, AReaderWhoseSenderDoesNotComeAgainThrowsAtItsDeadline) {
  const auto results = run_loopback(2, {}, 0, [](Communicator& c) -> std::string {
    std::array<std::uint8_t, 16> data{};
    const bool reader = c.topology().rank == 1;
    c.data().broadcast(data.data(), reader ? 16 : 8, 0,
                       Deadline::after(reader ? std::chrono::milliseconds(300) : kNever));
    const Deadline deadline = far_off();
    while (!deadline.passed()) {  // the sender must learn of the abort without another collective
      c.control().throw_if_aborted();
      std::this_thread::sleep_for(1ms);
    }
    return "no error";
  });
  const std::string text =
      "broadcast 1: rank 0 (host node0) has 8 bytes from rank 0, rank 1 (host node0) has 16 bytes from rank 0; all "
      "ranks must make the same calls with the same arguments";
  EXPECT_EQ(results[1], "error mismatch: " + text);
  EXPECT_EQ(results[0], "error peer_lost: rank 1 (host node0) gave up: " + text);
}

TEST_F(MismatchAtOnce, ADisagreementInsideOneNodeEndsTheOthers) {
  const auto results = run_loopback(4, {}, 2, [](Communicator& c) -> std::string {
    std::vector<std::uint8_t> data(8192);
    c.data().broadcast(data.data(), c.topology().rank == 1 ? 8192 : 4096, 3, far_off());
    c.control().barrier(far_off());
    return "no error";
  });
  const std::string text =
      "broadcast 1: rank 0 (host node0) has 4096 uint8, rank 1 (host node0) has 8192 uint8; all ranks must make the "
      "same calls with the same arguments";
  for (const std::size_t r : {0U, 1U}) EXPECT_EQ(results[r], "error mismatch: " + text);
  for (const std::size_t r : {2U, 3U}) EXPECT_EQ(results[r], "error peer_lost: rank 0 (host node0) gave up: " + text);
}

TEST_F(MismatchAtOnce, AMessageOfAnotherLengthThanExpectedEndsAllNodes) {
  const auto results = run_loopback(3, {}, 1, [](Communicator& c) -> std::string {
    std::vector<std::uint8_t> data(8192);
    c.data().broadcast(data.data(), c.topology().rank == 2 ? 8192 : 4096, 0, far_off());
    c.control().barrier(far_off());
    return "no error";
  });
  const std::string text = "rank 0 sent 4096 bytes to rank 2, which expected 8192";
  EXPECT_EQ(results[2].find("error mismatch: " + text), 0U) << results[2];
  for (const std::size_t r : {0U, 1U}) {
    EXPECT_EQ(results[r].find("error peer_lost: rank 2 (host node2) gave up: " + text), 0U) << results[r];
  }
}

TEST_F(MismatchAtOnce, AMessageThatIsTooLongIsRefusedByItsOwnRankOnOneNodeAndOnSeveral) {
  const std::byte nothing{};
  const std::span<const std::byte> too_long(&nothing, comm::kMaxMessage + 1);  // only its size is read
  const std::string expected =
      ": a message of 1073741825 bytes; a rank's message can have 1073741824 at most: send it in parts, or through the "
      "data plane";
  const auto refused = [&](Communicator& c, bool gathers) {
    return error_of([&] {
      if (gathers) c.control().gather(too_long, far_off());
      if (!gathers) c.control().broadcast(too_long, c.topology().rank, far_off());
    });
  };
  const auto solo = comm::make_solo();
  for (const bool gathers : {true, false}) {
    const std::string text = std::string("invalid_argument: ") + (gathers ? "gather" : "broadcast") + expected;
    EXPECT_EQ(refused(*solo, gathers), text);
    for (const int per_node : {0, 1}) {
      const auto results = run_loopback(2, {}, per_node, [&](Communicator& c) { return refused(c, gathers); });
      for (const std::string& result : results) EXPECT_EQ(result, text);
    }
  }
}

TEST_F(MismatchAtOnce, AWorldOfOneRefusesWhatLargerWorldsRefuse) {
  const auto solo = comm::make_solo();
  comm::DataPlane& plane = solo->data();
  std::array<float, 8> values{};
  std::iota(values.begin(), values.end(), 0.0F);
  const std::array<std::size_t, 1> four{4}, five{5};
  constexpr DataType kType = DataType::kF32;
  float* const v = values.data();
  const auto refused = [](const auto& call) { expect_error(Errc::kInvalidArgument, "", call); };
  refused([&] { plane.all_to_all(v + 4, {}, v, four, kType, far_off()); });
  refused([&] { plane.all_to_all(v + 4, five, v, four, kType, far_off()); });
  refused([&] { plane.all_to_all(v + 1, four, v, four, kType, far_off()); });
  refused([&] { plane.all_gather(v + 1, v, four, kType, far_off()); });
  refused([&] { plane.reduce_scatter(v + 1, v, four, kType, ReduceOp::kSum, far_off()); });
  refused([&] { plane.all_reduce_into(v + 1, v, 4, kType, ReduceOp::kSum, far_off()); });
  refused([&] { plane.broadcast(v, 4, 1, far_off()); });
  EXPECT_EQ(error_of([&] { plane.all_gather(v, v, four, kType, far_off()); }), "");
  EXPECT_EQ(error_of([&] { plane.all_to_all(v + 4, four, v, four, kType, far_off()); }), "");
  EXPECT_EQ(values[7], 3.0F);
}

}  // namespace
}  // namespace hvd::test::mismatch_test
