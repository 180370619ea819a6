// Tests the check of shared_gpu_gpu_test.cpp with the reference backend on a fake GPU. The check must pass if each rank
// takes its own half of the batch, and must fail if both ranks take the same half.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/cudnn/run/two_halves.h"
#include "tests/gpu/fake_runtime.h"
#include "tests/models/small_graphs.h"

namespace hvd::models::testing::shared_gpu_host_test {
namespace {

constexpr double kTolerance = 1e-5;  // the step computes in double and stores gradients in fp32

/// Returns the outcomes of both ranks. Rank 1 takes the half of the batch that belongs to rank `half_of_second`.
std::array<std::string, 2> run(int half_of_second) {
  test::FakeWorld world(1);
  std::array<std::string, 2> outcomes;
  {
    test::FakeRuntime gpu(world, 0);
    auto hosts = comm::make_loopback(2);
    std::vector<std::jthread> ranks;
    ranks.reserve(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto index = static_cast<std::size_t>(rank);
        const auto peers = test::make_same_process_memory();
        test::SharedGpu shared({.rank = rank, .size = 2}, gpu, *peers, test::exchange_over(*hosts[index]));
        const StepMaker make = [](Graph graph, const ArenaAllocator& allocate) {
          return make_reference_step(std::move(graph), {.gradient = DataType::kF32, .seed = 5}, allocate);
        };
        outcomes[index] =
            compare_halves_with_whole(rank == 0 ? 0 : half_of_second, gpu, shared, make, tiny_vgg, 4, kTolerance);
      });
    }
  }
  EXPECT_EQ(world.violations(), std::vector<std::string>());
  return outcomes;
}

TEST(TwoHalves, EqualTheWhole) {
  for (const std::string& outcome : run(1)) EXPECT_EQ(outcome, "");
}

TEST(TwoHalves, ThatAreTheSameHalfDoNot) {
  for (const std::string& outcome : run(0)) {
    EXPECT_NE(outcome.find("step 0, "), std::string::npos) << outcome;
  }
}

}  // namespace
}  // namespace hvd::models::testing::shared_gpu_host_test
