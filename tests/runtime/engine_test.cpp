// Tests the engine over loopback: sums must be right under every schedule and in any order in which gradients become
// ready.
#include "engine/runtime/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <utility>

#include "tests/base/errors.h"
#include "tests/runtime/ranks.h"

namespace hvd::engine_test {
namespace {

using test::contribution;
using test::expect_all_good;
using test::expected_sum;
using test::GradientArena;
using test::make_gradients;
using test::many_batches;
using test::on_ranks;
using test::patient_options;
using test::shuffled;

/// Runs `steps` steps. On each rank the gradients become ready in an order and at times of its own.
void run_steps(Engine& engine, int rank, int steps, std::size_t gradient_count) {
  const GradientArena arena(engine, gradient_count);
  for (int step = 0; step < steps; ++step) {
    const auto seed = static_cast<std::uint32_t>(step * 131 + rank);
    std::mt19937 random(seed);
    engine.begin_step();
    for (const std::size_t g : shuffled(gradient_count, seed)) {
      const core::GradientInfo& gradient = arena.gradients[g];
      for (std::size_t i = gradient.offset; i < gradient.offset + gradient.count; ++i) {
        arena.values[i] = contribution(rank, static_cast<std::uint64_t>(step), i);
      }
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      engine.gradient_ready(g);
    }
    engine.finish_step();
    arena.for_each_element([&](std::size_t i) {
      const float expected = expected_sum(engine.size(), static_cast<std::uint64_t>(step), i);
      ASSERT_EQ(arena.values[i], expected) << "step " << step << ", element " << i;
    });
  }
}

struct Case {
  Schedule schedule;
  int size;
};

class Schedules : public testing::TestWithParam<Case> {};

TEST_P(Schedules, SumsEqualAnIndependentComputationInAnyOrderOfReadiness) {
  const auto [schedule, size] = GetParam();
  expect_all_good(
      on_ranks(size, many_batches(schedule), [](Engine& engine, int rank) { run_steps(engine, rank, 12, 41); }));
}

INSTANTIATE_TEST_SUITE_P(Engine, Schedules,
                         testing::Values(Case{Schedule::kStatic, 1}, Case{Schedule::kStatic, 2},
                                         Case{Schedule::kStatic, 4}, Case{Schedule::kNegotiated, 1},
                                         Case{Schedule::kNegotiated, 2}, Case{Schedule::kNegotiated, 4}),
                         [](const auto& instance) {
                           return std::string(name(instance.param.schedule)) + std::to_string(instance.param.size);
                         });

TEST(Engine, NoneLeavesTheGradientsAlone) {
  expect_all_good(on_ranks(2, patient_options(Schedule::kNone), [](Engine& engine, int rank) {
    GradientArena arena(engine, 5);
    arena.values[0] = static_cast<float>(rank + 1);
    const StepReport report = arena.step();
    EXPECT_EQ(arena.values[0], static_cast<float>(rank + 1));
    EXPECT_EQ(report.batches, 0U);
    EXPECT_EQ(report.bytes, 0U);
  }));
}

TEST(Engine, TheScheduleMayChangeBetweenSteps) {
  expect_all_good(on_ranks(2, many_batches(Schedule::kStatic), [](Engine& engine, int rank) {
    GradientArena arena(engine, 9);
    for (const Schedule schedule :
         {Schedule::kStatic, Schedule::kNegotiated, Schedule::kNone, Schedule::kNegotiated, Schedule::kStatic}) {
      engine.set_schedule(schedule);
      arena.values[0] = static_cast<float>(rank + 1);
      engine.begin_step();
      EXPECT_THROW(engine.set_schedule(Schedule::kStatic), Error);
      arena.mark_all();
      const StepReport report = engine.finish_step();
      EXPECT_EQ(arena.values[0], schedule == Schedule::kNone ? static_cast<float>(rank + 1) : 3.0F);
      EXPECT_EQ(report.batches == 0, schedule == Schedule::kNone);
      EXPECT_EQ(report.control.count() == 0, schedule != Schedule::kNegotiated);
    }
  }));
}

/// Under the sharded schedule, each rank's shares must have the same bits as under the static schedule, and
/// gather_shares() must send the shares to all ranks. Tests a single node, and pretended nodes with the ring algorithm
/// (docs/algorithms.md).
TEST(Engine, ShardedBucketsHaveTheBitsOfTheStaticSchedule) {
  struct World {
    int size, ranks_per_node = 0;
  };
  for (const auto& [size, ranks_per_node] :
       {World{1}, World{2}, World{3}, World{5}, World{2, 1}, World{4, 2}, World{5, 2}, World{6, 3}}) {
    SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(ranks_per_node) + " per node");
    test::LoopbackOptions loopback;
    loopback.ranks_per_node = ranks_per_node;
    if (ranks_per_node > 0) loopback.comm.algorithm = comm::Algorithm::kRing;
    std::vector<std::vector<std::size_t>> owners(static_cast<std::size_t>(size));
    const auto body = [&, size = size](Engine& engine, int rank) {
      GradientArena arena(engine, 41);
      const Philox chance(11, static_cast<std::uint64_t>(rank));
      const auto step = [&](Schedule schedule) {
        engine.set_schedule(schedule);
        for (std::size_t i = 0; i < arena.elements; ++i) arena.values[i] = chance.uniform(i);
        return arena.step();
      };
      step(Schedule::kStatic);
      const std::vector<float> whole(arena.values, arena.values + arena.elements);
      const StepReport report = step(Schedule::kSharded);
      EXPECT_EQ(report.control.count(), 0);
      EXPECT_EQ(report.batches, size == 1 ? 0 : engine.plan().buckets.size());
      for (const comm::Range& share : engine.shares()) {
        for (std::size_t i = share.begin; i < share.end(); ++i) {
          ASSERT_EQ(arena.values[i], whole[i]) << "element " << i << " of rank " << rank;
          owners[static_cast<std::size_t>(rank)].push_back(i);
          arena.values[i] = 2 * whole[i];  // gather_shares() must send this new value
        }
      }
      engine.gather_shares(arena.memory, DataType::kF32);
      arena.for_each_element(
          [&](std::size_t i) { ASSERT_EQ(arena.values[i], 2 * whole[i]) << "element " << i << " on rank " << rank; });
    };
    expect_all_good(on_ranks(size, many_batches(Schedule::kStatic), body, loopback));
    std::vector<std::size_t> all;
    for (const auto& of : owners) all.insert(all.end(), of.begin(), of.end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << "an element has two owners";
  }
}

/// After set_buckets() makes a new plan, Engine::shares(), the reduction and the gathering must all follow the new
/// plan.
TEST(Engine, SharesFollowANewPlan) {
  expect_all_good(on_ranks(3, many_batches(Schedule::kSharded), [](Engine& engine, int rank) {
    GradientArena arena(engine, 41);
    const std::size_t before = engine.shares().size();
    for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{512}}) {
      engine.set_buckets({.bucket_bytes = bytes, .first_bucket_bytes = bytes});
      const auto shares = engine.shares();
      EXPECT_EQ(shares.size(), engine.plan().buckets.size());
      EXPECT_NE(shares.size(), before);
      for (std::size_t i = 0; i < arena.elements; ++i) arena.values[i] = contribution(rank, bytes, i);
      arena.step();
      for (const comm::Range& share : shares) {
        for (std::size_t i = share.begin; i < share.end(); ++i) {
          ASSERT_EQ(arena.values[i], expected_sum(3, bytes, i)) << i;
        }
      }
      engine.gather_shares(arena.memory, DataType::kF32);
      arena.for_each_element([&](std::size_t i) { ASSERT_EQ(arena.values[i], expected_sum(3, bytes, i)) << i; });
    }
  }));
}

/// The ranks of a node divide staging memory by the segment size. Ranks with different sizes would misread the memory.
TEST(Engine, RanksOfOneNodeWithDifferentSegmentsAreToldApart) {
  using Act = std::function<void(Engine&, float* data, float* other)>;
  constexpr std::size_t kCount = std::size_t{1} << 16;
  const std::vector<std::size_t> counts(2, kCount / 2);
  const std::array<std::pair<const char*, Act>, 4> operations{{
      {"all_reduce",
       [](Engine& engine, float* data, float*) { engine.all_reduce(data, kCount, DataType::kF32, ReduceOp::kSum); }},
      {"all_gather",
       [&](Engine& engine, float* data, float* other) { engine.all_gather(other, data, counts, DataType::kF32); }},
      {"reduce_scatter",
       [&](Engine& engine, float* data, float* other) {
         engine.reduce_scatter(other, data, counts, DataType::kF32, ReduceOp::kSum);
       }},
      {"broadcast", [](Engine& engine, float* data, float*) { engine.broadcast(data, kCount * sizeof(float), 0); }},
  }};
  for (const auto& [name, act] : operations) {
    const auto run = [&, act = act](std::size_t second_segment) {
      return on_ranks(2, patient_options(Schedule::kStatic), [&](Engine& engine, int rank) {
        std::vector<float> data(kCount, 1), other(kCount);
        act(engine, data.data(), other.data());  // allocates staging memory of the default size
        comm::CommOptions options;
        options.segment_bytes = rank == 0 ? std::size_t{64} << 10 : second_segment;
        engine.set_reduction(options);
        act(engine, data.data(), other.data());
      });
    };
    expect_all_good(run(std::size_t{64} << 10));
    const auto outcomes = run(std::size_t{128} << 10);
    for (const test::Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, Errc::kMismatch) << name << ": " << outcome.text;
      EXPECT_NE(outcome.text.find("bytes at a time"), std::string::npos) << name << ": " << outcome.text;
    }
    EXPECT_EQ(outcomes[0].text, outcomes[1].text);
  }
}

TEST(Engine, TheReportCountsBytesAndBatches) {
  expect_all_good(on_ranks(2, many_batches(Schedule::kStatic), [](Engine& engine, int) {
    GradientArena arena(engine, 20);
    std::size_t bytes = 0;
    for (const core::Bucket& bucket : engine.plan().buckets) bytes += bucket.count * sizeof(float);
    const StepReport report = arena.step();
    EXPECT_EQ(report.batches, engine.plan().buckets.size());
    EXPECT_GT(report.batches, 2U);
    EXPECT_EQ(report.bytes, bytes);
    EXPECT_GT(report.reduce.count(), 0);
    EXPECT_EQ(report.copy.count(), 0);
  }));
}

/// Here the gradients of a negotiated batch are a contiguous range of the arena, so nothing is copied.
TEST(Engine, ContiguousNegotiatedGradientsAreNotCopied) {
  expect_all_good(on_ranks(2, patient_options(Schedule::kNegotiated), [](Engine& engine, int) {
    GradientArena arena(engine, 20);
    for (int step = 0; step < 5; ++step) EXPECT_EQ(arena.step().copy.count(), 0);
    EXPECT_GT(engine.cycle_stats().cycles, 0U);
  }));
}

/// Reduces values whose sum depends on the order of addition, twice, each time with new engines. All results must be
/// equal.
TEST(Engine, ResultsAreBitIdenticalOnAllRanksAndRunAfterRun) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kNegotiated}) {
    std::vector<std::vector<float>> results;
    for (int run = 0; run < 2; ++run) {
      std::vector<std::vector<float>> of_rank(4);
      expect_all_good(on_ranks(4, patient_options(schedule), [&](Engine& engine, int rank) {
        GradientArena arena(engine, 30, ReduceOp::kAverage);
        const Philox random(5, static_cast<std::uint64_t>(rank));
        for (std::size_t i = 0; i < arena.elements; ++i) {
          arena.values[i] = random.normal(i) * std::exp2(random.normal(i + 7));
        }
        arena.step();
        // Keeps only elements of gradients. The gaps between gradients may differ, because only some batches sum the
        // gaps.
        std::vector<float>& mine = of_rank[static_cast<std::size_t>(rank)];
        arena.for_each_element([&](std::size_t i) { mine.push_back(arena.values[i]); });
      }));
      results.insert(results.end(), of_rank.begin(), of_rank.end());
    }
    for (const auto& result : results) {
      ASSERT_EQ(result.size(), results[0].size());
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0) << name(schedule);
    }
  }
}

TEST(Engine, TwoEnginesLiveInOneProcessAndOneThread) {
  auto first = comm::make_loopback(2);
  auto second = comm::make_loopback(2);
  std::atomic<int> good{0};
  test::on_threads(2, [&](std::size_t rank) {
    Engine sums(std::move(first[rank]), patient_options(Schedule::kNegotiated));
    Engine largest(std::move(second[rank]), patient_options(Schedule::kNegotiated));
    float x = static_cast<float>(rank + 1), y = x;
    const Ticket sum = test::submit(sums, "v", x), max = test::submit(largest, "v", y, ReduceOp::kMax);
    largest.wait(max);
    sums.wait(sum);
    if (x == 3.0F && y == 2.0F) ++good;
  });
  EXPECT_EQ(good.load(), 2);
}

TEST(Engine, CallersMistakesAreToldAndHarmless) {
  expect_all_good(on_ranks(2, patient_options(Schedule::kStatic), [](Engine& engine, int) {
    const auto throws = [](const char* part, const auto& call) {
      test::expect_error(Errc::kInvalidArgument, part, call);
    };
    throws("set_gradients() first", [&] { engine.begin_step(); });
    throws("set_gradients() first", [&] { static_cast<void>(engine.plan()); });
    const auto gradients = make_gradients(3);
    const auto memory = engine.allocate(test::arena_elements(gradients) * sizeof(float));
    auto twins = gradients;
    twins[1].name = twins[0].name;
    throws("layer0.weight", [&] { engine.set_gradients(twins, memory.data(), DataType::kF32, ReduceOp::kSum); });
    engine.set_gradients(gradients, memory.data(), DataType::kF32, ReduceOp::kSum);
    throws("already set", [&] { engine.set_gradients(gradients, memory.data(), DataType::kF32, ReduceOp::kSum); });
    throws("no step has begun", [&] { engine.gradient_ready(0); });
    throws("no step has begun", [&] { engine.finish_step(); });
    engine.begin_step();
    throws("not finished", [&] { engine.begin_step(); });
    throws("there are 3 gradients", [&] { engine.gradient_ready(3); });
    engine.gradient_ready(0);
    throws("layer0.weight' is already marked as ready", [&] { engine.gradient_ready(0); });
    engine.gradient_ready(2);
    throws("layer1.weight' was never marked", [&] { engine.finish_step(); });
    engine.gradient_ready(1);
    engine.finish_step();  // the step is still open after the refused calls
    float x = 0;
    const std::array<std::int64_t, 1> one{1};
    throws("name of a gradient",
           [&] { engine.all_reduce_async("layer0.weight", &x, one, DataType::kF32, ReduceOp::kSum); });
    throws("has no memory", [&] { engine.all_reduce_async("x", nullptr, one, DataType::kF32, ReduceOp::kSum); });
    throws("ticket 99", [&] { engine.wait(99); });
    throws("zero bytes", [&] { engine.allocate(0); });
    engine.barrier();
  }));
}

}  // namespace
}  // namespace hvd::engine_test
