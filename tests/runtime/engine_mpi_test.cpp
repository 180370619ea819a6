// Tests the engine over MPI. mpirun starts two ranks. Every rank runs every test. A failure on any rank fails the run.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/base/errors.h"
#include "tests/runtime/ranks.h"

namespace hvd::engine_mpi_test {
namespace {

/// MPI can be initialised only once per process, so this communicator keeps MPI alive from test to test.
class MpiEnvironment : public testing::Environment {
 public:
  void SetUp() override { keeper_ = comm::make_mpi(); }
  void TearDown() override { keeper_.reset(); }

 private:
  std::unique_ptr<comm::Communicator> keeper_;
};
// GoogleTest owns the environment and runs it around all tests.
[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new MpiEnvironment);

class EngineOverMpi : public testing::TestWithParam<Schedule> {};

TEST_P(EngineOverMpi, StepsGiveTheSumsOfAnIndependentComputation) {
  EngineOptions options = test::patient_options(GetParam());
  options.buckets.first_bucket_bytes = 256;
  options.buckets.bucket_bytes = 4096;
  Engine engine(comm::make_mpi(), options);
  test::GradientArena arena(engine, 200);
  for (std::uint64_t step = 0; step < 20; ++step) {
    engine.begin_step();
    for (std::size_t g = 0; g < arena.gradients.size(); ++g) {
      const std::size_t end = arena.gradients[g].offset + arena.gradients[g].count;
      for (std::size_t i = arena.gradients[g].offset; i < end; ++i) {
        arena.values[i] = test::contribution(engine.rank(), step, i);
      }
      engine.gradient_ready(g);
    }
    EXPECT_EQ(engine.finish_step().batches > 0, engine.size() > 1);
    arena.for_each_element([&](std::size_t i) {
      ASSERT_EQ(arena.values[i], test::expected_sum(engine.size(), step, i)) << "element " << i << " in step " << step;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Mpi, EngineOverMpi, testing::Values(Schedule::kStatic, Schedule::kNegotiated),
                         [](const auto& instance) { return std::string(name(instance.param)); });

TEST(Mpi, TicketsOfTensorsAnywhereInMemory) {
  Engine engine(comm::make_mpi(), test::patient_options(Schedule::kNegotiated));
  std::vector<std::vector<double>> tensors(50);
  for (int round = 0; round < 5; ++round) {
    std::vector<Ticket> tickets;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      // Rank 1 submits the tensors in the opposite order of rank 0.
      const std::size_t which = engine.rank() == 1 ? tensors.size() - 1 - t : t;
      tensors[which].assign(which + 1, engine.rank() + 1.0);
      const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(which + 1)};
      tickets.push_back(engine.all_reduce_async("tensor" + std::to_string(which), tensors[which].data(), shape,
                                                DataType::kF64, ReduceOp::kAverage));
    }
    for (const Ticket ticket : tickets) engine.wait(ticket);
    for (const auto& tensor : tensors) {
      for (const double value : tensor) ASSERT_EQ(value, (engine.size() + 1) / 2.0);
    }
  }
}

TEST(Mpi, APlanMismatchIsAnErrorOnEveryRankWithTheSameText) {
  Engine engine(comm::make_mpi(), test::patient_options(Schedule::kStatic));
  if (engine.size() == 1) GTEST_SKIP() << "needs two ranks";
  auto gradients = test::make_gradients(4);
  if (engine.rank() == 1) gradients[2].name = "another";
  const auto memory = engine.allocate(4096);
  test::expect_error(Errc::kMismatch, {"rank 1 (host ", "'layer2.weight' here, 'another' there"},
                     [&] { engine.set_gradients(gradients, memory.data(), DataType::kF32, ReduceOp::kSum); });
}

TEST(Mpi, TwoEnginesSideBySide) {
  Engine sums(comm::make_mpi(), test::patient_options(Schedule::kNegotiated));
  Engine maxima(comm::make_mpi(), test::patient_options(Schedule::kNegotiated));
  float x = static_cast<float>(sums.rank() + 1), y = x;
  const Ticket a = test::submit(sums, "v", x), b = test::submit(maxima, "v", y, ReduceOp::kMax);
  maxima.wait(b);
  sums.wait(a);
  EXPECT_EQ(x, static_cast<float>(sums.size() * (sums.size() + 1) / 2));
  EXPECT_EQ(y, static_cast<float>(sums.size()));
}

}  // namespace
}  // namespace hvd::engine_mpi_test
