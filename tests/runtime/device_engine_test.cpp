// Runs steps on fake GPUs. Work must run in order, and a captured step must compute the same as an eager step. Every
// test also checks that the fakes report no fault, such as a race or a wrong order of destruction.
#include "engine/runtime/device_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/base/errors.h"
#include "tests/runtime/device_network.h"

namespace hvd::test::device_engine_test {
namespace {

using namespace std::chrono_literals;

struct Mode {
  Schedule schedule;
  bool overlap, graph;
  int ranks_per_node = 0;  ///< if > 0: this many consecutive ranks pretend to be a node
};

class DeviceSteps : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(DeviceSteps, GiveTheSumsOfAllRanks) {
  const auto [size, way] = GetParam();
  constexpr int kSteps = 6;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const GpuWorldOptions options{.seed = seed, .ranks_per_node = way.ranks_per_node};
    expect_good(on_gpu_ranks(size, options, [&, size = size, way = way](GpuRank& rank) {
      DeviceEngine engine(rank.connect(), small_buckets(way.schedule), {.overlap = way.overlap, .graph = way.graph});
      Network network(rank, engine);
      for (int step = 0; step < kSteps; ++step) {
        const DeviceReport report = network.step();
        const bool capturable = way.graph && (way.schedule != Schedule::kNegotiated || size == 1);
        EXPECT_EQ(report.graph, capturable && step >= 2) << "step " << step;
        EXPECT_GE(report.step, report.exposed);
        if (size == 1 || way.schedule == Schedule::kNone) {
          EXPECT_EQ(report.bytes, 0U);
        } else {
          EXPECT_GE(report.bytes, arena_elements(network.gradients()) * sizeof(float) / 2);
          EXPECT_GT(report.batches, 1U);
        }
      }
      const std::vector<float> got = network.parameters();
      if (way.schedule == Schedule::kNone) {
        for (const core::GradientInfo& gradient : network.gradients()) {
          float alone = 0;
          for (std::uint64_t step = 0; step < kSteps; ++step) alone += contribution(rank.rank, step, gradient.offset);
          EXPECT_EQ(got[gradient.offset], alone);
        }
      } else {
        EXPECT_EQ(got, expected_parameters(size, kSteps, network.gradients())) << "seed " << seed;
      }
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceSteps,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::Values(Mode{Schedule::kStatic, true, true}, Mode{Schedule::kStatic, true, false},
                                         Mode{Schedule::kStatic, false, true}, Mode{Schedule::kStatic, false, false},
                                         Mode{Schedule::kNegotiated, true, true}, Mode{Schedule::kNone, true, true},
                                         Mode{Schedule::kStatic, true, true, 1},
                                         Mode{Schedule::kStatic, false, true, 2},
                                         Mode{Schedule::kNegotiated, true, true, 2})));

/// The parameter is the number of ranks per node, as in Mode::ranks_per_node.
class DeviceChanges : public ::testing::TestWithParam<int> {};

TEST_P(DeviceChanges, BetweenStepsLoseNothing) {
  constexpr int kSteps = 4;  // steps per setting: two eager steps, a captured step, a launched step
  expect_good(on_gpu_ranks(4, {.ranks_per_node = GetParam()}, [&](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {});
    Network network(rank, engine);
    int steps = 0;
    const auto train = [&](bool graph, std::size_t fewest, std::size_t most) {
      for (int step = 0; step < kSteps; ++step) {
        const DeviceReport report = network.step();
        EXPECT_EQ(report.graph, graph && step >= 2) << "step " << step;
        // The duration of a captured step does not predict the duration of a launched step.
        const bool after_capture = report.graph && step == 3;
        EXPECT_EQ(report.expected.count() > 0, step > 0 && !after_capture) << "step " << step;
        EXPECT_GE(report.batches, fewest);
        EXPECT_LE(report.batches, most);
      }
      steps += kSteps;
    };
    train(true, 2, kGradients - 1);
    engine.set_buckets({.bucket_bytes = 1 << 20, .first_bucket_bytes = 1 << 20});
    train(true, 1, 1);
    engine.set_options({.overlap = false, .graph = false});
    engine.set_buckets({.bucket_bytes = 1, .first_bucket_bytes = 1});
    train(false, kGradients, kGradients);
    engine.reconnect({.max_ctas = 4, .register_memory = false});
    EXPECT_NE(engine.engine().data_plane().find("memory not registered, at most 4 CTAs"), std::string::npos);
    engine.set_options({});
    train(true, kGradients, kGradients);
    engine.reconnect({});
    train(true, kGradients, kGradients);
    EXPECT_EQ(network.parameters(), expected_parameters(4, steps, network.gradients()));
  }));
}

INSTANTIATE_TEST_SUITE_P(All, DeviceChanges, ::testing::Values(0, 2));

TEST(DeviceEngine, ARankThatCannotConnectAnewEndsAll) {
  const GpuOutcome outcome = on_gpu_ranks(3, {}, [](GpuRank& rank) {
    const EngineOptions brief = small_buckets(Schedule::kStatic, 2s);
    DeviceEngine engine(rank.connect(), brief, {});
    Network network(rank, engine);
    for (int step = 0; step < 4; ++step) network.step();
    if (rank.rank == 2) throw Error(Errc::kBackend, "rank 2 has had enough");
    engine.reconnect({.max_ctas = 4});
  });
  for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(outcome.errors[r].find("peer_lost: "), 0U) << outcome.text();
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

/// Returns the events of rank 0 in the log. Maps each event to the position of its last occurrence.
std::map<std::string, std::size_t> last_step_of_rank_0(const std::vector<std::string>& log) {
  std::map<std::string, std::size_t> positions;
  for (std::size_t i = 0; i < log.size(); ++i) {
    if (log[i].starts_with("rank 0 ")) positions[log[i].substr(7)] = i;
  }
  return positions;
}

/// Returns for how many seeds the first bucket's reduction began before the last gradient was made.
int seeds_with_overlap(bool overlap, bool graph) {
  int seen = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    std::size_t first_bucket = 0;
    const GpuOutcome outcome = on_gpu_ranks(2, {.seed = seed}, [&](GpuRank& rank) {
      DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {.overlap = overlap, .graph = graph});
      Network network(rank, engine);
      for (int step = 0; step < 3; ++step) network.step();
      if (rank.rank == 0) first_bucket = engine.engine().plan().buckets.front().count;
    });
    EXPECT_TRUE(outcome.good()) << outcome.text();
    auto at = last_step_of_rank_0(outcome.log);
    seen += at.at("begins all_reduce of " + std::to_string(first_bucket)) <
                    at.at("backward " + std::to_string(kGradients - 1))
                ? 1
                : 0;
  }
  return seen;
}

TEST(DeviceEngine, OverlapsOnlyWhenAskedTo) {
  for (const bool graph : {false, true}) {
    EXPECT_GT(seeds_with_overlap(true, graph), 0);
    EXPECT_EQ(seeds_with_overlap(false, graph), 0);
  }
}

TEST(DeviceEngine, BucketsAreReducedInPlanOrderForEveryBackwardOrder) {
  const GpuOutcome outcome = on_gpu_ranks(2, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {.graph = false});
    Network network(rank, engine);
    if (rank.rank == 1) std::reverse(network.order_.begin(), network.order_.end());
    network.step();
    EXPECT_EQ(network.parameters(), expected_parameters(2, 1, network.gradients()));
  });
  // If two ranks reduced different buckets at the same time, the fake GPUs would report errors.
  EXPECT_TRUE(outcome.good()) << outcome.text();
}

TEST(DeviceEngine, NegotiatesWhateverTheOrderOnEachRank) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    expect_good(on_gpu_ranks(3, {.seed = seed}, [](GpuRank& rank) {
      DeviceEngine engine(rank.connect(), small_buckets(Schedule::kNegotiated), {});
      Network network(rank, engine);
      std::rotate(network.order_.begin(), network.order_.begin() + 3 * rank.rank, network.order_.end());
      for (int step = 0; step < 3; ++step) network.step();
      EXPECT_EQ(network.parameters(), expected_parameters(3, 3, network.gradients()));
    }));
  }
}

// docs/gpu.md explains why no kernel packs many gradients in one launch.
TEST(DeviceEngine, NegotiatedGradientsAreCopiedOnlyWhereTheyComeOutOfOrder) {
  for (const bool in_order : {true, false}) {
    std::atomic<bool> copied = false;
    expect_good(on_gpu_ranks(2, {}, [&](GpuRank& rank) {
      DeviceEngine engine(rank.connect(), small_buckets(Schedule::kNegotiated), {});
      Network network(rank, engine);
      if (!in_order) {
        // The gradients with even indices come first. The pause before gradient 1 is long enough to negotiate them.
        std::stable_partition(network.order_.begin(), network.order_.end(), [](std::size_t i) { return i % 2 == 0; });
        network.before_gradient_ = [](std::size_t i) {
          if (i == 1) std::this_thread::sleep_for(200ms);
        };
      }
      for (int step = 0; step < 3; ++step) {
        if (network.step().engine.copy > std::chrono::nanoseconds::zero()) copied = true;
      }
      EXPECT_EQ(network.parameters(), expected_parameters(2, 3, network.gradients()));
    }));
    EXPECT_EQ(copied, !in_order);
  }
}

// A batch of gradients out of order consists of several runs of adjacent gradients. NCCL gets all runs of a batch in
// one group, so the fake NCCL starts one thread per batch instead of one per run.
TEST(DeviceEngine, NegotiatedRunsOfABatchAreHandedOverTogether) {
  constexpr std::size_t kLong = 40000, kCount = 6;  // a gradient has 160 kB: large enough for a reduction of its own
  constexpr int kSteps = 4;
  std::atomic<int> started = 0;
  std::atomic<std::size_t> batches = 0;
  expect_good(on_gpu_ranks(2, {}, [&](GpuRank& rank) {
    EngineOptions options = small_buckets(Schedule::kNegotiated);
    options.negotiation.fusion.threshold_bytes = std::size_t{64} << 20;
    DeviceEngine engine(rank.connect(), options, {});
    const std::span<std::byte> arena = engine.engine().allocate(kCount * kLong * sizeof(float));
    const auto compute = rank.gpu.make_stream(gpu::Priority::kNormal);
    std::vector<core::GradientInfo> gradients;
    for (std::size_t i = 0; i < kCount; ++i) gradients.push_back({"g" + std::to_string(i), i * kLong, kLong});
    engine.set_gradients(gradients, arena.data(), DataType::kF32, ReduceOp::kSum);
    engine.engine().barrier();
    const int before = rank.hub.threads_started();
    engine.engine().barrier();
    for (int step = 0; step < kSteps; ++step) {
      rank.gpu.fill(arena.data(), std::byte{0}, arena.size(), compute);
      engine.run_step(compute, {[&] {
                                  for (const std::size_t i : {0, 2, 4}) engine.gradient_ready(i);
                                  std::this_thread::sleep_for(100ms);  // 0, 2 and 4 are negotiated meanwhile
                                  for (const std::size_t i : {1, 3, 5}) engine.gradient_ready(i);
                                },
                                [] {}});
      batches += engine.finish_step().batches;
    }
    engine.engine().barrier();
    if (rank.rank == 0) started = rank.hub.threads_started() - before;
    rank.gpu.synchronize(compute, Deadline::after(20s), "the steps");
  }));
  EXPECT_EQ(static_cast<std::size_t>(started), batches.load());  // both numbers count both ranks
  EXPECT_LT(batches, 2 * kSteps * kCount) << "one thread for each run, as without a group";
}

TEST(DeviceEngine, SchedulesMaySwitchBetweenSteps) {
  expect_good(on_gpu_ranks(2, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {.eager_steps = 1});
    Network network(rank, engine);
    for (int round = 0; round < 3; ++round) {
      for (const Schedule schedule : {Schedule::kStatic, Schedule::kNegotiated}) {
        engine.set_schedule(schedule);
        EXPECT_EQ(network.step().graph, schedule == Schedule::kStatic && round > 0);
      }
    }
    EXPECT_EQ(network.parameters(), expected_parameters(2, 6, network.gradients()));
    engine.drop_graphs();
    engine.set_schedule(Schedule::kStatic);
    EXPECT_TRUE(network.step().graph);
  }));
}

class DeviceStepsAhead : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(DeviceStepsAhead, GiveTheSumsOfAllRanks) {
  const auto [size, way] = GetParam();
  constexpr std::size_t kSteps = 9;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const GpuWorldOptions options{.seed = seed, .ranks_per_node = way.ranks_per_node};
    expect_good(on_gpu_ranks(size, options, [&, size = size, way = way](GpuRank& rank) {
      DeviceEngine engine(rank.connect(), small_buckets(way.schedule), {.overlap = way.overlap, .graph = way.graph});
      Network network(rank, engine);
      const std::vector<DeviceReport> reports = network.steps_ahead(kSteps);
      ASSERT_EQ(reports.size(), kSteps);
      const bool captured = way.graph && engine.graph_refusal().empty();
      for (std::size_t step = 0; step < kSteps; ++step) {
        // The first three steps do not run ahead: two are eager, and the third is captured.
        EXPECT_EQ(reports[step].ahead, captured && step >= 3) << "step " << step;
        EXPECT_EQ(reports[step].slot, step % kStepsInFlight);
        EXPECT_EQ(reports[step].graph, captured && step >= 2) << "step " << step;
        EXPECT_GT(reports[step].step.count(), 0) << "step " << step;
      }
      EXPECT_EQ(network.parameters(), expected_parameters(size, kSteps, network.gradients())) << "seed " << seed;
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceStepsAhead,
    ::testing::Combine(::testing::Values(1, 3),
                       ::testing::Values(Mode{Schedule::kStatic, true, true}, Mode{Schedule::kStatic, false, true},
                                         Mode{Schedule::kStatic, true, false}, Mode{Schedule::kNegotiated, true, true},
                                         Mode{Schedule::kStatic, true, true, 1})));

TEST(DeviceEngine, LaunchesOneStepAheadAndNoMore) {
  expect_good(on_gpu_ranks(2, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {});
    Network network(rank, engine);
    const auto launch_is_refused = [&] {
      EXPECT_FALSE(engine.may_run_ahead());
      EXPECT_THROW(network.launch(), Error);
    };
    for (int step = 0; step < 2; ++step) {  // these two steps are eager
      network.launch();
      launch_is_refused();
      engine.finish_step();
    }
    network.launch();
    EXPECT_TRUE(engine.may_run_ahead());
    network.launch();
    launch_is_refused();
    EXPECT_THROW(engine.set_schedule(Schedule::kNone), Error);
    EXPECT_THROW(engine.set_options({.ahead = false}), Error);
    EXPECT_FALSE(engine.finish_step().ahead);
    EXPECT_TRUE(engine.finish_step().ahead);
    engine.set_options({.ahead = false});
    for (const DeviceReport& report : network.steps_ahead(6)) EXPECT_FALSE(report.ahead);
    EXPECT_EQ(network.parameters(), expected_parameters(2, 10, network.gradients()));
  }));
}

// Rank 0 takes steps alone between common steps, as in phase solo. Afterwards both ranks must still run the same graph.
TEST(DeviceEngine, ARankMayTakeStepsAloneInBetween) {
  expect_good(on_gpu_ranks(2, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {});
    Network network(rank, engine);
    for (int round = 0; round < 3; ++round) {
      network.steps_ahead(4 + round);
      engine.set_schedule(Schedule::kNone);
      if (rank.rank == 0) network.steps_ahead(3);
      engine.set_schedule(Schedule::kStatic);
    }
  }));
}

// Rank 0 takes steps alone, as in phase solo, and the other ranks skip these steps. If a rank later falls behind, the
// engine must still name the right rank.
TEST(DeviceEngine, ARankThatHasTakenStepsAloneIsNamedAllTheSame) {
  const GpuOutcome outcome = on_gpu_ranks(3, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic, 1500ms), {});
    Network network(rank, engine);
    network.steps_ahead(4);
    engine.set_schedule(Schedule::kNone);
    if (rank.rank == 0) {
      network.steps_ahead(5);
    } else {
      engine.skip_steps(5);
    }
    engine.set_schedule(Schedule::kStatic);
    network.steps_ahead(3);
    if (rank.rank == 0) std::this_thread::sleep_for(6s);
    network.steps_ahead(3);
  });
  for (const std::size_t rank : {1U, 2U}) {
    expect_contains(outcome.errors[rank], "rank 0 (host node0) is furthest behind: after step 11, nothing in flight");
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

}  // namespace
}  // namespace hvd::test::device_engine_test
