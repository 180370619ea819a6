// Tests sessions of hvd_bench coll on fake GPUs with a fake NCCL.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "bench/coll/rank.h"
#include "bench/coll/record.h"
#include "bench/coll/schedule.h"
#include "bench/coll/session.h"
#include "bench/world/cores.h"
#include "engine/base/error.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/bench/coll/coll_options.h"
#include "tests/bench/fake_gpus.h"

namespace hvd::bench::coll_gpu_test {
namespace {

using namespace coll;
using namespace std::chrono_literals;
using test::on_threads;

CollOptions quick() {
  CollOptions options = test::quick_coll();
  options.gpus = true;
  options.types = {DataType::kF32, DataType::kF16};
  return options;
}

/// Runs a session that must fail. Returns its error.
Error error_of(int ranks, const CollOptions& options, test::FakeGpus* gpus) {
  try {
    run_coll(on_threads(ranks, options), {}, gpus);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {Errc::kBackend, ""};
}

TEST(CollOnGpus, EveryCollectiveIsMeasuredAndRight) {
  for (const int ranks : {1, 2, 3}) {
    test::FakeGpus gpus(ranks);
    const CollResult result = run_coll(on_threads(ranks, quick()), {}, &gpus);
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
      if (problem.collective != MeasuredCollective::kBarrier) {
        EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0)) << what;
      }
    }
    EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
  }
}

TEST(CollOnGpus, FactsOfAllRanksAreGatheredAsInTraining) {
  test::FakeGpus gpus(2);
  gpus.visible_to_a_rank = 1;
  CollObserver observer;
  observer.nccl_log = [] { return std::string("h:1:2 [0] NCCL INFO Using network Socket\n"); };
  const CollOptions options = on_threads(2, quick());
  const CollResult result = run_coll(options, observer, &gpus);
  const Provenance facts = launch_facts(options, result);
  EXPECT_EQ(facts.at("gpu.name").value, "Fake H200");
  EXPECT_EQ(facts.at("gpu.uuid").value, "GPU-fake-0; GPU-fake-1");
  EXPECT_EQ(facts.at("nccl.network").value, "Socket");
  EXPECT_EQ(facts.at("caution.one_visible_gpu").value.find("rank 0 and 1 more sees one GPU though 2 ranks run"), 0U);
  const std::vector<RankCores> cores(2, rank_cores());
  const std::vector<std::string>& hosts = result.world.hosts;
  EXPECT_EQ(facts.contains("caution.few_cpus"), !few_cpus(share_cores(cores, hosts, 1), hosts).empty());
}

CollOptions in_graphs(std::uint32_t launches) {
  CollOptions options = quick();
  options.collectives = {MeasuredCollective::kAllReduce, MeasuredCollective::kReduceScatter,
                         MeasuredCollective::kAllGather, MeasuredCollective::kAllToAll};
  options.graph_launches = launches;
  return options;
}

TEST(CollOnGpus, AGraphOfACellIsCapturedOnceAndItsResultIsChecked) {
  constexpr std::uint32_t kLaunches = 7;
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    test::FakeGpus gpus(ranks);
    std::vector<std::atomic<std::size_t>> launches(static_cast<std::size_t>(ranks)), captures(launches.size());
    gpus.on_launch = [&](int gpu) { ++launches.at(static_cast<std::size_t>(gpu)); };
    gpus.on_capture = [&](int gpu) { ++captures.at(static_cast<std::size_t>(gpu)); };
    CollOptions options = in_graphs(kLaunches);
    options.max_seconds = 1e-6;  // so short that each launch may hold only one operation
    options.checks = 2;
    const CollResult result = run_coll(on_threads(ranks, options), {}, &gpus);
    const std::size_t cells = result.cells.size();
    EXPECT_EQ(cells, 2U * 2 * (3 * 2 + 1));
    std::size_t sampled = 0;
    for (const CellResult& cell : result.cells) {
      EXPECT_EQ(cell.batch, kLaunches) << "operations a sample";
      EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0));
      sampled += cell.samples;
    }
    for (std::size_t gpu = 0; gpu < launches.size(); ++gpu) {
      EXPECT_EQ(captures[gpu], 2 * cells) << "for the samples, and for the check of one operation";
      ASSERT_GT(launches[gpu], kLaunches * sampled);
      EXPECT_EQ((launches[gpu] - options.checks * cells) % kLaunches, 0U);
    }
    EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
  }
}

/// An operation takes a little more than 300 turns of the fake GPUs, both when launched alone and in a graph.
TEST(CollOnGpus, TimeOfAGraphIsThatOfOneOperation) {
  const auto median_of = [](std::uint32_t launches) {
    test::FakeGpus gpus(2);
    gpus.nccl.turns = [](int) { return 300; };
    CollOptions options = in_graphs(launches);
    options.collectives = {MeasuredCollective::kAllReduce};
    options.sizes = {64};
    options.types = {DataType::kF32};
    options.place = Place::kInPlace;
    options.max_seconds = 1e-2;
    return run_coll(on_threads(2, options), {}, &gpus).cells.at(0).seconds.value;
  };
  const double plain = median_of(0), graph = median_of(10);
  EXPECT_GT(graph, plain / 2);
  EXPECT_LT(graph, plain * 2);
}

/// The host takes longer for each call of NCCL than the operation takes on the GPU.
TEST(CollOnGpus, TimeOfAnOperationIsTheGpusNotTheHosts) {
  test::FakeGpus gpus(2);
  gpus.nccl.turns_of_call = 5000;
  CollOptions options = in_graphs(0);
  options.place = Place::kInPlace;
  const CollResult result = run_coll(on_threads(2, options), {}, &gpus);
  for (const CellResult& cell : result.cells) {
    EXPECT_LT(cell.seconds.value, 1e-3) << name(cell.cell.problem.collective);
    EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0));
  }
  EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
}

/// Ranks release their streams some microseconds apart. The reduction before the first event waits for the last rank.
TEST(CollOnGpus, TimeOfAnOperationBeginsWhenAllGpusHaveMet) {
  test::FakeGpus gpus(2);
  std::vector<std::string> calls;  // of GPU 0
  gpus.on_call = [&](int gpu, const test::FakeCall& call) {
    if (gpu == 0 && call.stream != nullptr) calls.push_back(call.what);
  };
  CollOptions options = in_graphs(0);
  options.collectives = {MeasuredCollective::kAllReduce};
  run_coll(on_threads(2, options), {}, &gpus);
  std::size_t held = 0;
  for (std::size_t i = 0; i + 2 < calls.size(); ++i) {
    if (calls[i] != "hold") continue;
    ++held;
    EXPECT_EQ(calls[i + 1], "all_reduce of 1");
    EXPECT_EQ(calls[i + 2], "record");
  }
  EXPECT_GT(held, 0U);
}

TEST(CollOnGpus, OperationsOfAHeldSampleFitIntoTheLaunchQueue) {
  CollOptions options = quick();
  EXPECT_EQ(largest_batch(options), kMostHeld);
  for (const std::uint32_t launches : {1U, 10U, 64U}) {
    options.graph_launches = launches;
    EXPECT_LE(largest_batch(options) * launches, kMostHeldInGraphs) << launches;
    EXPECT_GE(largest_batch(options), 8U) << launches;
  }
  options.graph_launches = 65;
  EXPECT_EQ(largest_batch(options), ScheduleRule{}.max_batch) << "so many launches are not held";
  options = test::quick_coll();
  EXPECT_EQ(largest_batch(options), ScheduleRule{}.max_batch) << "on CPUs";
}

struct LostRank {
  int ranks;
  CollOptions options;
  int looks;  ///< calls of stop_requested() before the rank is lost
};

/// NCCL's abort waits until the graphs with NCCL's kernels have been destroyed. By the fifth look four cells have some.
TEST(CollOnGpus, ALostRankEndsTheSessionOnAllRanks) {
  for (LostRank lost : {LostRank{3, quick(), 20}, LostRank{2, in_graphs(3), 5}}) {
    SCOPED_TRACE(std::to_string(lost.options.graph_launches) + " launches of a graph");
    test::FakeGpus good(lost.ranks), gpus(lost.ranks);
    const auto usual_begin = Clock::now();
    run_coll(on_threads(lost.ranks, lost.options), {}, &good);
    const auto usual = Clock::now() - usual_begin;
    lost.options.max_seconds = 1000;
    lost.options.target_interval = 1e-9;
    CollObserver observer;
    observer.stop_requested = [&] {
      if (--lost.looks == 0) gpus.hub().lose_a_rank();
      return std::string();
    };
    const auto begin = Clock::now();
    test::expect_error(Errc::kPeerLost, "a peer is lost or gave up",
                       [&] { run_coll(on_threads(lost.ranks, lost.options), observer, &gpus); });
    EXPECT_LT(Clock::now() - begin, 9s + 4 * usual) << "a rank waits 10 s for NCCL to come back";
    EXPECT_EQ(gpus.hub().aborting(), 0);
    EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
  }
}

TEST(CollOnGpus, RegisteredMemoryIsComparedWithPlain) {
  test::FakeGpus gpus(2);
  CollOptions options = quick();
  options.collectives = {MeasuredCollective::kAllReduce};
  options.variants = {{"memory=registered", {}, true}, {"memory=plain", {}, false}};
  const CollResult result = run_coll(on_threads(2, options), {}, &gpus);
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
  EXPECT_LT(Clock::now() - begin, test::kAtOnce) << "nobody waits for the deadline";
}

TEST(CollOnGpus, AReductionThatNcclLacksIsRefused) {
  CollOptions options = quick();
  options.types = {DataType::kI16};
  EXPECT_THROW(make_cells(options, 2, true), Error);
  options.collectives = {MeasuredCollective::kAllGather};
  EXPECT_EQ(make_cells(options, 2, true).size(), 4U) << "moved, not reduced";
}

TEST(CollOnGpus, ABufferLargerThanTheGpuIsRefusedBeforeItIsTaken) {
  test::FakeGpus gpus(2);
  CollOptions options = quick();
  options.collectives = {MeasuredCollective::kAllReduce};
  options.sizes = {std::size_t{1} << 46};
  const Error error = error_of(2, options, &gpus);
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("of this GPU"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace hvd::bench::coll_gpu_test
