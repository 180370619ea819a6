// The engine over MPI. mpirun starts two ranks; every rank runs every test, and a failure on any rank fails the run.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/runtime/ranks.h"

namespace hvd::engine_mpi_test {
namespace {

/// MPI can be initialised once per process only, so this communicator keeps it alive from test to test.
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
  const auto gradients = test::make_gradients(200);
  const auto memory = engine.allocate(test::arena_elements(gradients) * sizeof(float));
  auto* const arena = reinterpret_cast<float*>(memory.data());
  engine.set_gradients(gradients, memory.data(), DataType::kF32, ReduceOp::kSum);
  for (std::uint64_t step = 0; step < 20; ++step) {
    engine.begin_step();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      const std::size_t end = gradients[g].offset + gradients[g].count;
      for (std::size_t i = gradients[g].offset; i < end; ++i) arena[i] = test::contribution(engine.rank(), step, i);
      engine.gradient_ready(g);
    }
    const StepReport report = engine.finish_step();
    EXPECT_EQ(report.batches > 0, engine.size() > 1);
    for (const core::GradientInfo& gradient : gradients) {
      for (std::size_t i = gradient.offset; i < gradient.offset + gradient.count; ++i) {
        ASSERT_EQ(arena[i], test::expected_sum(engine.size(), step, i)) << gradient.name << " in step " << step;
      }
    }
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
      // Rank 1 submits in the opposite order.
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
  try {
    engine.set_gradients(gradients, memory.data(), DataType::kF32, ReduceOp::kSum);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kMismatch);
    EXPECT_NE(std::string(error.what()).find("rank 1 (host "), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("'layer2.weight' here, 'another' there"), std::string::npos);
  }
}

TEST(Mpi, TwoEnginesSideBySide) {
  Engine sums(comm::make_mpi(), test::patient_options(Schedule::kNegotiated));
  Engine maxima(comm::make_mpi(), test::patient_options(Schedule::kNegotiated));
  float x = static_cast<float>(sums.rank() + 1), y = x;
  const std::array<std::int64_t, 1> one{1};
  const Ticket a = sums.all_reduce_async("v", &x, one, DataType::kF32, ReduceOp::kSum);
  const Ticket b = maxima.all_reduce_async("v", &y, one, DataType::kF32, ReduceOp::kMax);
  maxima.wait(b);
  sums.wait(a);
  EXPECT_EQ(x, static_cast<float>(sums.size() * (sums.size() + 1) / 2));
  EXPECT_EQ(y, static_cast<float>(sums.size()));
}

}  // namespace
}  // namespace hvd::engine_mpi_test
