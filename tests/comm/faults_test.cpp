// Tests deadlines, aborts, roll calls and disagreements, with ranks as threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/comm/communicator.h"
#include "engine/comm/shm/shared_memory.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/comm/loopback_world.h"

namespace hvd::test::faults_test {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;

class MissingRank : public ::testing::TestWithParam<std::pair<comm::Algorithm, int>> {};

TEST_P(MissingRank, EndsTheOthersAtTheDeadlineAndIsNamed) {
  const auto [algorithm, per_node] = GetParam();
  comm::CommOptions options;
  options.algorithm = algorithm;
  auto world = comm::make_loopback(4, options, per_node);
  std::vector<std::string> results(4);
  const auto start = Clock::now();
  on_threads(3, [&](std::size_t r) {  // rank 3 never comes
    std::vector<float> data(100000);
    results[r] = error_of([&] {
      world[r]->data().all_reduce(data.data(), data.size(), DataType::kF32, ReduceOp::kSum, Deadline::after(300ms));
    });
    world[r]->control().abort(results[r]);  // as the engine does
  });
  EXPECT_LT(Clock::now() - start, kAtOnce);
  // Every rank names the missing rank, even a rank that waited for another rank. Each rank learns of the missing rank
  // from a roll call or from a peer's abort.
  for (std::size_t r = 0; r < 3; ++r) {
    expect_contains(results[r], "peer_lost: ");
    expect_contains(results[r], "all_reduce 1 (400000 bytes) for rank 3 (host ");
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, MissingRank,
                         ::testing::Values(std::pair{comm::Algorithm::kAuto, 0}, std::pair{comm::Algorithm::kAuto, 2},
                                           std::pair{comm::Algorithm::kRing, 0}, std::pair{comm::Algorithm::kAuto, 1},
                                           std::pair{comm::Algorithm::kRecursiveDoubling, 0}));

TEST(Deadline, ManyMissingRanksAreATimeoutThatNamesThem) {
  auto world = comm::make_loopback(3);
  const std::string error = error_of([&] { world[1]->control().barrier(Deadline::after(50ms)); });
  expect_contains(error, "timeout: rank 1 (host node0) waited");
  expect_contains(error, "in barrier 1 for rank 0 (host node0), rank 2 (host node0)");
}

TEST(Abort, WakesSleepersOfAllNodesFastWithTheReason) {
  for (const int per_node : {0, 2}) {
    auto world = comm::make_loopback(4, {}, per_node);
    std::vector<std::string> results(4);
    std::atomic<int> waiting{0};
    Clock::time_point aborted;
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < 3; ++r) {
        threads.emplace_back([&, r] {
          ++waiting;
          results[r] = error_of([&] { world[r]->control().barrier(Deadline::after(kNever)); });
        });
      }
      while (waiting < 3) std::this_thread::yield();
      std::this_thread::sleep_for(30ms);
      aborted = Clock::now();
      world[3]->control().abort("loss is not a number on rank 3");
    }
    EXPECT_LT(Clock::now() - aborted, kAtOnce);
    for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(results[r], "peer_lost: loss is not a number on rank 3");
    // Later waits fail at once with the same error.
    EXPECT_EQ(error_of([&] { world[0]->control().barrier(Deadline::after(kNever)); }),
              "peer_lost: loss is not a number on rank 3");
  }
}

TEST(RollCall, CollectsWhatTheOthersDo) {
  for (const int per_node : {0, 2}) {
    auto world = comm::make_loopback(4, {}, per_node);
    std::vector<std::optional<std::string>> answers;
    std::atomic<bool> ready{false}, over{false};
    {
      std::vector<std::jthread> threads;
      threads.emplace_back([&] {  // rank 1 is idle and answers roll calls
        while (!over) {
          world[1]->control().answer_roll_call("step 17, computing");
          std::this_thread::sleep_for(1ms);
        }
      });
      threads.emplace_back([&] {  // rank 2 waits inside a collective, which answers roll calls
        ready = true;
        error_of([&] { world[2]->control().barrier(Deadline::after(kNever)); });
      });
      while (!ready) std::this_thread::yield();
      answers = world[0]->control().roll_call("step 18, waiting for bucket 3", 700ms);  // rank 3 does not answer
      over = true;
      world[0]->control().abort("done");
    }
    ASSERT_EQ(answers.size(), 4U);
    EXPECT_EQ(answers[0], "step 18, waiting for bucket 3");
    EXPECT_EQ(answers[1], "step 17, computing");
    ASSERT_TRUE(answers[2].has_value());
    expect_contains(*answers[2], "waiting in barrier 1 for rank");
    EXPECT_EQ(answers[3], std::nullopt);
  }
}

TEST(RollCall, AllRanksAtOnceHearEachOtherWithoutWaitingOutThePatience) {
  for (const int per_node : {0, 2}) {
    const auto start = Clock::now();
    expect_good(run_loopback(4, {}, per_node, [](Communicator& c) -> std::string {
      const auto answers = c.control().roll_call("rank " + std::to_string(c.topology().rank), kNever);
      for (std::size_t r = 0; r < answers.size(); ++r) {
        if (answers[r] != "rank " + std::to_string(r)) return "answer of rank " + std::to_string(r);
      }
      return "";
    }));
    EXPECT_LT(Clock::now() - start, kAtOnce);
  }
}

TEST(Mismatch, OfCountTypeOrOperationIsAnErrorOnEveryRank) {
  for (const std::size_t count : {10U, 100000U}) {
    const auto results = run_loopback(2, {}, 0, [&](Communicator& c) {
      std::vector<double> data(count + 1);
      return error_of([&] {
        c.data().all_reduce(data.data(), count, c.topology().rank == 0 ? DataType::kF32 : DataType::kI32,
                            ReduceOp::kSum, Deadline::after(5s));
      });
    });
    for (const auto& result : results) {
      for (const char* const part : {"mismatch: ", "fp32", "int32"}) expect_contains(result, part);
    }
  }
}

TEST(FlightRecord, KeepsTheLastCollectivesOfAllRanksOfTheNode) {
  auto world = comm::make_loopback(2);
  EXPECT_EQ(world[0]->flight_record(), "");
  const auto collectives = [&](std::size_t rank) {
    std::vector<float> data(4);
    for (int i = 0; i < 100; ++i) world[rank]->control().barrier(Deadline::after(5s));  // more than the record can hold
    world[rank]->data().all_reduce(data.data(), 4, DataType::kF32, ReduceOp::kSum, Deadline::after(5s));
  };
  {
    const std::jthread other([&] { collectives(1); });
    collectives(0);
  }
  const std::string record = world[1]->flight_record();
  expect_contains(record, "rank 0 (host node0): all_reduce 101 (16 bytes of fp32), entered ");
  expect_contains(record, " s ago, took ");
  expect_contains(record, "rank 1 (host node0): all_reduce 101 (16 bytes of fp32), entered ");
  expect_contains(record, "rank 1 (host node0): barrier 100, entered ");
  EXPECT_EQ(record.find("barrier 98"), std::string::npos) << "three a rank: " << record;
}

TEST(FlightRecord, RanksOutOfStepNameBothCollectives) {
  const auto results = run_loopback(2, {}, 0, [&](Communicator& c) {
    return error_of([&] {
      c.topology().rank == 0 ? c.control().barrier(Deadline::after(5s))
                             : static_cast<void>(c.control().gather({}, Deadline::after(5s)));
    });
  });
  for (const auto& result : results) expect_contains(result, "mismatch: ");
  expect_contains(results[0], "rank 0 (host node0) is in barrier 1, but rank 1 (host node0) is in gather 1: ");
  expect_contains(results[1], "rank 1 (host node0) is in gather 1, but rank 0 (host node0) is in barrier 1: ");
}

TEST(SharedMemory, TooLittleSaysHowMuchIsNeededAndThere) {
  const std::string name = "/hvd_bench_test." + std::to_string(getpid());
  const std::size_t huge = std::size_t{1} << 46;  // 64 TiB: more than any /dev/shm
  const std::string error = error_of([&] {
    const auto memory = comm::SharedMemory::create(name, huge);
    comm::SharedMemory::unlink(name);
    memory.commit(0, huge);
  });
  comm::SharedMemory::unlink(name);
  expect_contains(error, "out_of_memory: ");
  expect_contains(error, "67108864.0 MiB");
}

TEST(SharedMemory, IsGoneOnceUnlinkedAndUnmapped) {
  const std::string name = "/hvd_bench_test2." + std::to_string(getpid());
  {
    const auto first = comm::SharedMemory::create(name, 4096);
    first.commit(0, 4096);
    const auto second = comm::SharedMemory::open(name, 4096);
    first.bytes()[5] = std::byte{42};
    EXPECT_EQ(second.bytes()[5], std::byte{42});
    comm::SharedMemory::unlink(name);
    expect_error(Errc::kIo, "cannot open shared memory", [&] { comm::SharedMemory::open(name, 4096); });
    EXPECT_EQ(second.bytes()[5], std::byte{42});
  }
}

TEST(Allocate, TooMuchFailsOnEveryRankAlike) {
  const auto results = run_loopback(2, {}, 0, [](Communicator& c) {
    return error_of([&] { c.data().allocate(std::size_t{1} << 50, Deadline::after(5s)); });
  });
  for (const auto& result : results) expect_contains(result, "out_of_memory: ");
}

}  // namespace
}  // namespace hvd::test::faults_test
