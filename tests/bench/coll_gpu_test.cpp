// Sessions of hvd_bench coll on fake GPUs with a fake NCCL.
#include <gtest/gtest.h>

#include "bench/coll/session.h"
#include "engine/base/error.h"
#include "tests/bench/fake_gpus.h"

namespace hvd::bench::coll_gpu_test {
namespace {

using namespace coll;
using namespace std::chrono_literals;

Options world_of_threads(int ranks) {
  Options world;
  world.comm = CommBackend::kLoopback;
  world.ranks = ranks;
  world.engine.deadline = Patience(20s);
  world.startup_deadline = Patience(20s);
  return world;
}

CollOptions quick() {
  CollOptions options;
  options.gpus = true;
  options.collectives = {kCollectives.begin(), kCollectives.end()};
  options.sizes = {64, 40000};
  options.types = {DataType::kF32, DataType::kF16};
  options.warm = true;
  options.warmup = 1;
  options.max_seconds = 1e-3;
  return options;
}

/// The error of a session that must fail.
Error error_of(int ranks, const CollOptions& options, test::FakeGpus* gpus) {
  try {
    run_coll(world_of_threads(ranks), options, {}, gpus);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {Errc::kBackend, ""};
}

TEST(CollOnGpus, EveryCollectiveIsMeasuredAndRight) {
  for (const int ranks : {1, 2, 3}) {
    test::FakeGpus gpus(ranks);
    const CollResult result = run_coll(world_of_threads(ranks), quick(), {}, &gpus);
    EXPECT_EQ(result.world.comm, "nccl");
    EXPECT_EQ(result.world.gpu, "Fake H200");
    EXPECT_EQ(result.cells.size(), 2U * 2 * (3 * 2 + 2) + 1);
    for (const CellResult& cell : result.cells) {
      const Problem& problem = cell.cell.problem;
      const std::string what = std::string(name(problem.collective)) + (problem.in_place ? ", in place, " : ", ") +
                               std::string(nccl_name(problem.type)) + ", " + std::to_string(cell.bytes) + " bytes on " +
                               std::to_string(ranks);
      EXPECT_GT(cell.samples, 0U) << what;
      EXPECT_FALSE(cell.bound) << what;
      if (problem.collective != Collective::kBarrier) {
        EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0)) << what;
      }
    }
    EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
  }
}

TEST(CollOnGpus, ALostRankEndsTheSessionOnAllRanks) {
  test::FakeGpus gpus(3);
  CollOptions options = quick();
  options.max_seconds = 1000;
  options.target_interval = 1e-9;
  int looks = 0;
  CollObserver observer;
  observer.stop_requested = [&] {
    if (++looks == 20) gpus.hub().lose_a_rank();
    return std::string();
  };
  const auto begin = Clock::now();
  try {
    run_coll(world_of_threads(3), options, observer, &gpus);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a peer is lost or gave up"), std::string::npos) << error.what();
  }
  EXPECT_LT(Clock::now() - begin, 15s) << "nobody waits for the deadline";
  EXPECT_EQ(gpus.hub().aborting(), 0);
}

TEST(CollOnGpus, RegisteredMemoryIsComparedWithPlain) {
  test::FakeGpus gpus(2);
  CollOptions options = quick();
  options.collectives = {Collective::kAllReduce};
  options.variants = {{"memory=registered", {}, true}, {"memory=plain", {}, false}};
  const CollResult result = run_coll(world_of_threads(2), options, {}, &gpus);
  for (const CellResult& cell : result.cells) {
    const bool registered = cell.cell.variant == 0;
    EXPECT_EQ(cell.plane.find("memory not registered") == std::string::npos, registered) << cell.plane;
    EXPECT_EQ(cell.ratio.has_value(), !registered);
    EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0));
  }
  EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
}

TEST(CollOnGpus, RanksWithoutAGpuAreRefused) {
  test::FakeGpus none(0);
  const Error error = error_of(2, quick(), &none);
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("--device cuda: no GPU was found"), std::string::npos) << error.what();
}

TEST(CollOnGpus, ABrokenGpuEndsTheSessionOnAllRanks) {
  test::FakeGpus gpus(3);
  gpus.broken_gpu = 1;
  const auto begin = Clock::now();
  EXPECT_NE(std::string(error_of(3, quick(), &gpus).what()).find("GPU 1 has fallen off the bus"), std::string::npos);
  EXPECT_LT(Clock::now() - begin, 15s) << "nobody waits for the deadline";
}

TEST(CollOnGpus, AReductionThatNcclLacksIsRefused) {
  CollOptions options = quick();
  options.types = {DataType::kI16};
  EXPECT_THROW(make_cells(options, 2, true), Error);
  options.collectives = {Collective::kAllGather};
  EXPECT_EQ(make_cells(options, 2, true).size(), 4U) << "moved, not reduced";
}

TEST(CollOnGpus, ABufferLargerThanTheGpuIsRefusedBeforeItIsTaken) {
  test::FakeGpus gpus(2);
  CollOptions options = quick();
  options.collectives = {Collective::kAllReduce};
  options.sizes = {std::size_t{1} << 46};
  const Error error = error_of(2, options, &gpus);
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("of this GPU"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace hvd::bench::coll_gpu_test
