// Tests process sets over MPI. mpirun starts four ranks. Every rank runs every test. A failure on any rank fails the
// run.
#include <gtest/gtest.h>
#include <mpi.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/mpi/from_communicator.h"
#include "tests/base/errors.h"
#include "tests/runtime/ranks.h"

namespace hvd::process_sets_mpi_test {
namespace {

/// Initialises MPI in the program itself, before an engine does.
class MpiEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    ASSERT_EQ(comm::mpi_threads_supported(), provided == MPI_THREAD_MULTIPLE);
  }
  void TearDown() override { MPI_Finalize(); }
};
// GoogleTest owns the environment and runs it around all tests.
[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new MpiEnvironment);

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

Engine negotiated(std::unique_ptr<comm::Communicator> communicator) {
  return Engine(std::move(communicator), test::patient_options(Schedule::kNegotiated));
}

float sum_over(Engine& engine, float value) {
  engine.wait(test::submit(engine, "v", value));
  return value;
}

TEST(ProcessSetsOverMpi, OverlappingAndDisjointSetsAtOnce) {
  const int rank = world_rank();
  const std::array<std::array<int, 2>, 4> sets{{{0, 1}, {1, 2}, {2, 3}, {3, 0}}};
  std::vector<std::unique_ptr<Engine>> engines;
  Engine all = negotiated(comm::make_mpi());
  for (const auto& set : sets) {
    auto communicator = comm::make_mpi_set(set);
    EXPECT_EQ(communicator != nullptr, rank == set[0] || rank == set[1]);
    engines.push_back(
        communicator ? std::make_unique<Engine>(std::move(communicator), test::patient_options(Schedule::kNegotiated))
                     : nullptr);
  }
  for (int round = 0; round < 5; ++round) {
    // Each rank first submits to the set that has its own number. If one thread served all sets, the ranks would wait
    // in a circle.
    const std::array<int, 2> order{rank, (rank + 3) % 4};
    std::array<float, 2> values{};
    std::array<Ticket, 2> tickets{};
    for (std::size_t i = 0; i < 2; ++i) {
      values[i] = static_cast<float>(rank);
      Engine& engine = *engines[static_cast<std::size_t>(order[i])];
      tickets[i] = test::submit(engine, "v", values[i]);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const auto& set = sets[static_cast<std::size_t>(order[i])];
      engines[static_cast<std::size_t>(order[i])]->wait(tickets[i]);
      EXPECT_EQ(values[i], static_cast<float>(set[0] + set[1]));
    }
    EXPECT_EQ(sum_over(all, 1), 4.0F);
  }
}

/// Rank 0 makes the set late, because it first waits for a reduction of all ranks. The calls of the other ranks already
/// wait for rank 0 and must not block this reduction.
TEST(ProcessSetsOverMpi, ASetIsMadeWhileAnotherEngineWorks) {
  const int rank = world_rank();
  Engine all = negotiated(comm::make_mpi());
  float value = 1;
  const Ticket ticket = test::submit(all, "v", value);
  if (rank == 0) all.wait(ticket);
  const std::array<int, 2> set{2, 0};
  auto communicator = comm::make_mpi_set(set);
  if (rank != 0) all.wait(ticket);
  EXPECT_EQ(value, 4.0F);
  if (communicator == nullptr) return;
  Engine pair = negotiated(std::move(communicator));
  EXPECT_EQ(pair.rank(), rank == 2 ? 0 : 1);
  EXPECT_EQ(sum_over(pair, 1), 2.0F);
}

TEST(ProcessSetsOverMpi, BadListsAreErrorsOnAllRanks) {
  const auto expect = [](Errc code, const std::string& part, const std::vector<int>& ranks) {
    test::expect_error(code, part, [&] { return comm::make_mpi_set(ranks); });
  };
  expect(Errc::kInvalidArgument, "at least one", {});
  expect(Errc::kInvalidArgument, "rank 4 is not one of the 4 ranks", {0, 4});
  expect(Errc::kMismatch, "ranks 0 and 2 gave different lists",
         world_rank() == 2 ? std::vector<int>{0} : std::vector<int>{0, 2});
}

TEST(ProcessSetsOverMpi, ACommunicatorOfTheProgramsOwn) {
  EXPECT_THROW(static_cast<void>(comm::make_mpi(MPI_COMM_NULL)), Error);
  const int rank = world_rank();
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  {
    auto communicator = comm::make_mpi(half);
    MPI_Comm_free(&half);
    Engine engine = negotiated(std::move(communicator));
    EXPECT_EQ(engine.size(), 2);
    EXPECT_EQ(engine.rank(), rank < 2 ? 1 : 0);  // ranks keep the order of the communicator
    EXPECT_EQ(sum_over(engine, static_cast<float>(rank)), rank % 2 == 0 ? 2.0F : 4.0F);
    if (comm::mpi_threads_supported()) {
      int one = 1;
      MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      EXPECT_EQ(one, 4);
    }
  }
}

}  // namespace
}  // namespace hvd::process_sets_mpi_test
