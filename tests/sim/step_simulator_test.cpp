// Schedules worked by hand. All times are sums of powers of two, so that results are exact.
#include "engine/sim/step_simulator.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/base/errors.h"

namespace hvd::sim::step_simulator_test {
namespace {

CostTable always(double seconds) { return CostTable({{1, seconds}}); }

/// Ranks on one node whose compute takes `factors` times that of the profile.
NoisePool speeds(const std::vector<double>& factors) {
  NoisePool pool;
  pool.nodes.emplace_back();
  for (const double factor : factors) pool.nodes.back().push_back({factor});
  return pool;
}

/// A world of one rank with a gradient of 400,000 bytes for each of `ready_seconds`, and a bucket for each gradient.
World world_of(const std::vector<double>& ready_seconds, double backward_end_seconds, Schedule schedule) {
  constexpr std::size_t kElements = 100000;
  World world;
  world.schedule = schedule;
  world.profile.backward_end_seconds = backward_end_seconds;
  for (const double ready : ready_seconds) {
    const std::size_t g = world.profile.gradients.size();
    world.profile.gradients.push_back({g * kElements, kElements, ready, ready});
    world.buckets.push_back({g, g + 1, g * kElements, kElements});
  }
  world.costs.all_reduce = always(1);
  return world;
}

/// Rank 1 takes twice as long as rank 0.
World unlike_ranks(World world) {
  world.ranks = {2, 2};
  world.noise = speeds({1, 2});
  return world;
}

TEST(StaticSchedule, AQueueOfBuckets) {
  // Reductions run from 1 to 3, 3 to 5 and 5 to 7. Backward ends at 4.5: 3.5 s beside it, 2.5 s after its end.
  World world = world_of({1, 2, 4}, 4.5, Schedule::kStatic);
  world.costs.bucket_seconds = {2, 2, 2};
  world.profile.update_seconds = 0.25;
  const StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.exposed, 2.5);
  EXPECT_EQ(step.overlapped, 3.5);
  EXPECT_EQ(step.step, 7.25);
  EXPECT_EQ(step.update, 0.25);
  EXPECT_EQ(step.batches, 3U);
  EXPECT_EQ(step.stragglers + step.control + step.slowed, 0);
  EXPECT_EQ(step.cycles, 0U);

  world.profile.backward_end_seconds = 100;
  EXPECT_EQ(StepSimulator(world).step().exposed, 0);
}

TEST(StaticSchedule, ABucketIsReadyWithTheLastOfItsGradientsAndTakesTheTimeOfItsBytes) {
  World world = world_of({1, 3, 2}, 3, Schedule::kStatic);
  world.buckets = {{0, 2, 0, 200000}, {2, 3, 200000, 100000}};
  world.costs.all_reduce = CostTable({{400000, 1}, {800000, 2}});
  const StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.step, 3 + 2 + 1);
  EXPECT_EQ(step.batches, 2U);
}

TEST(StaticSchedule, TwoRanksOfUnlikeSpeed) {
  // Ready on rank 0 at 1 and 2, on rank 1 at 2 and 4: reductions from 2 to 3 and from 4 to 5. Rank 0 waits from 2 to 5,
  // rank 1 from 4 to 5. The updates end at 5.5 and 6.
  World world = unlike_ranks(world_of({1, 2}, 2, Schedule::kStatic));
  world.profile.update_seconds = 0.5;
  StepSimulator simulator(world);
  StepResult step = simulator.step();
  EXPECT_EQ(step.step, 6);
  EXPECT_EQ(step.exposed, 1);
  EXPECT_EQ(step.stragglers, (2.0 + 0.0) / 2);
  EXPECT_EQ(step.overlapped, (0.0 + 1.0) / 2);
  EXPECT_EQ(step.update, (0.5 + 1.0) / 2);
  // Rank 0 begins its second step 0.5 s earlier, and waits so much longer.
  step = simulator.step();
  EXPECT_EQ(step.step, 6);
  EXPECT_EQ(step.exposed, 1);
  EXPECT_EQ(step.stragglers, (2.5 + 0.0) / 2);
}

TEST(StaticSchedule, EqualRanksTakeAsLongAsOneAndKeepInStep) {
  World world = world_of({1, 2, 4}, 4.5, Schedule::kStatic);
  const double alone = StepSimulator(world).step().step;
  world.ranks = {512, 8};
  StepSimulator simulator(world);
  for (int i = 0; i < 3; ++i) {
    const StepResult step = simulator.step();
    EXPECT_EQ(step.step, alone);
    EXPECT_EQ(step.stragglers, 0);
  }
}

TEST(ShardedSchedule, EachRankUpdatesItsShareAndGathersTheOthers) {
  // As above until 5. Updates of half the weights end at 5.25 and 5.5; two gathers of 0.25 end at 6.
  World world = unlike_ranks(world_of({1, 2}, 2, Schedule::kSharded));
  world.profile.update_seconds = 0.5;
  world.costs.reduce_scatter = always(1);
  world.costs.all_gather = always(0.25);
  const StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.step, 6);
  EXPECT_EQ(step.exposed, 1 + 0.5);
  EXPECT_EQ(step.stragglers, (3.75 - 1.5) / 2);
  EXPECT_EQ(step.update, (0.25 + 0.5) / 2);
}

TEST(NoSchedule, NothingIsReduced) {
  World world = unlike_ranks(world_of({1, 2}, 2, Schedule::kNone));
  world.compute_factor = 1.5;
  world.profile.update_seconds = 1;
  const StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.step, 2 * 1.5 * 3);
  EXPECT_EQ(step.exposed + step.stragglers + step.overlapped, 0);
}

TEST(OverlapSlowdown, DelaysGradientsThatAreStillToCome) {
  // Reductions: 1 to 2, which delays by 0.5; 2.5 to 3.5, by 1 in all; 4 to 5, by 1.5. Backward ends at 4 + 1.5.
  World world = world_of({1, 2, 3}, 4, Schedule::kStatic);
  world.costs.overlap_slowdown = 0.5;
  const StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.step, 5.5);
  EXPECT_EQ(step.exposed, 0);
  EXPECT_EQ(step.overlapped, 3);
  EXPECT_EQ(step.slowed, 1.5);
}

TEST(OverlapSlowdown, EndsWithTheCompute) {
  // From 1 on, the 0.25 s of compute that are left take 0.5 s.
  World world = world_of({1}, 1.25, Schedule::kStatic);
  world.costs.overlap_slowdown = 0.5;
  StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.overlapped, 0.5);
  EXPECT_EQ(step.slowed, 0.25);
  EXPECT_EQ(step.exposed, 0.5);
  EXPECT_EQ(step.step, 2);
  world.costs.overlap_slowdown = 1;  // compute stands still
  step = StepSimulator(world).step();
  EXPECT_EQ(step.slowed, 1);
  EXPECT_EQ(step.exposed, 0);
  EXPECT_EQ(step.step, 2.25);
}

World negotiated(const std::vector<double>& ready_seconds, double backward_end_seconds) {
  World world = world_of(ready_seconds, backward_end_seconds, Schedule::kNegotiated);
  world.costs.cycle_seconds = 0.25;
  return world;
}

TEST(NegotiatedSchedule, ACycleTakesWhatIsReadyWhenItBegins) {
  // Cycles from 1, 2.25 and 3.5, each followed by the reduction of one gradient: the third ends at 4.75. Of the wait of
  // 1.75 the control plane takes 0.75 / (0.75 + 3).
  const StepResult step = StepSimulator(negotiated({1, 1.5, 3}, 3)).step();
  EXPECT_EQ(step.cycles, 3U);
  EXPECT_EQ(step.batches, 3U);
  EXPECT_EQ(step.step, 4.75);
  EXPECT_DOUBLE_EQ(step.control, 0.35);
  EXPECT_DOUBLE_EQ(step.exposed, 1.4);
}

TEST(NegotiatedSchedule, TwoRanksOfUnlikeSpeedAgreeOnWhatBothHave) {
  // On rank 1 the gradients are ready at 2, 3 and 6. Cycles from 2, 3.25 (rank 0 has all, rank 1 the second) and 6,
  // whose reduction ends at 7.25. Rank 1 waits 1.25, rank 0 4.25.
  const StepResult step = StepSimulator(unlike_ranks(negotiated({1, 1.5, 3}, 3))).step();
  EXPECT_EQ(step.cycles, 3U);
  EXPECT_EQ(step.step, 7.25);
  EXPECT_DOUBLE_EQ(step.control, 1.25 * 0.75 / 3.75);
  EXPECT_DOUBLE_EQ(step.exposed, 1.0);
  EXPECT_EQ(step.stragglers, (3.0 + 0.0) / 2);
}

TEST(NegotiatedSchedule, FusesUpToTheThreshold) {
  World world = negotiated({1, 1, 1, 1, 1}, 1);
  StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.cycles, 1U);
  EXPECT_EQ(step.batches, 1U);
  EXPECT_EQ(step.step, 1 + 0.25 + 1);
  world.negotiation.fusion.threshold_bytes = 2 * 400000;
  step = StepSimulator(world).step();
  EXPECT_EQ(step.cycles, 1U);
  EXPECT_EQ(step.batches, 3U);
  EXPECT_EQ(step.step, 1 + 0.25 + 3);
}

TEST(NegotiatedSchedule, PausesAfterASmallCycleAsTheEngineDoes) {
  // The first cycle ends at 0.11 ms. After the pause of 0.02 ms both other gradients are ready.
  World world = negotiated({100e-6, 105e-6, 120e-6}, 120e-6);
  world.costs.cycle_seconds = 10e-6;
  world.costs.all_reduce = always(0);
  EXPECT_EQ(StepSimulator(world).step().cycles, 3U) << "400 kB are no small cycle";
  for (Gradient& gradient : world.profile.gradients) gradient.count = 1000;
  const StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.cycles, 2U);
  EXPECT_DOUBLE_EQ(step.step, 140e-6);
}

TEST(NegotiatedSchedule, ABatchWithAGapIsCopiedAsTheEngineDoes) {
  // Gradients of 4, 40 and 4 bytes, of which the second does not fit into 100 bytes beside the first. The others share
  // a batch with a gap: 4 bytes from 0 on and 4 from 64 on. Their 8 bytes are copied twice in 2 s, then reduced in 1 s.
  World world = negotiated({1, 1, 1}, 1);
  for (Gradient& gradient : world.profile.gradients) gradient.count = 1;
  world.profile.gradients[1].count = 10;
  world.negotiation.fusion.threshold_bytes = 100;
  world.costs.copy_seconds_per_byte = 0.125;
  StepSimulator simulator(world);
  const StepResult step = simulator.step();
  EXPECT_EQ(step.batches, 2U);
  EXPECT_EQ(step.step, 1 + 0.25 + 2 + 1 + 1);
  EXPECT_EQ(simulator.messages()[0].least, 40U);
  EXPECT_EQ(simulator.messages()[0].most, 68U);
}

TEST(Streams, TheEngineNegotiatesByTheHostAndTheDeviceReducesWhatIsReady) {
  World world = negotiated({5, 6}, 6);
  world.profile.gradients[0].submit_seconds = 1;
  world.profile.gradients[1].submit_seconds = 2;
  world.costs.all_reduce = always(2);
  // Cycles from 1 and 2 on the host; reductions from 5 to 7 and from 7 to 9 on the device.
  world.reducer = Reducer::kStream;
  EXPECT_EQ(StepSimulator(world).step().step, 9);
  // At 5 the device has 1 s of compute left, which takes as long as the first reduction.
  world.costs.overlap_slowdown = 0.5;
  const StepResult step = StepSimulator(world).step();
  EXPECT_EQ(step.step, 9);
  EXPECT_EQ(step.slowed, 1);
  EXPECT_DOUBLE_EQ(step.exposed + step.control, 2);
}

TEST(Jitter, EveryReductionDrawsItsFactor) {
  World world = world_of({1, 2, 4}, 4.5, Schedule::kStatic);
  world.costs.all_reduce = CostTable({{1, 1, {1, 3}}});
  StepSimulator simulator(world);
  std::set<double> seen;
  for (int i = 0; i < 100; ++i) seen.insert(simulator.step().step);
  EXPECT_EQ(seen, (std::set<double>{5, 6, 7, 8, 10})) << "of reductions that take 1 or 3 s";
}

TEST(SmallMessages, TakeTheTimeOfTheirOwnTable) {
  // By the engine's own rule, 32 KiB are exchanged without a ring and 4 bytes more by a ring.
  for (const std::size_t more : {0U, 1U}) {
    World world = world_of({1}, 1, Schedule::kStatic);
    world.profile.gradients[0].count = world.buckets[0].count = 8192 + more;
    world.costs.small_all_reduce = always(0.25);
    StepSimulator simulator(world);
    EXPECT_EQ(simulator.step().step, 1 + (more == 0 ? 0.25 : 1));
    const std::size_t bytes = 4 * (8192 + more);
    EXPECT_EQ(simulator.messages()[more == 0 ? 1 : 0].least, bytes);
    EXPECT_EQ(simulator.messages()[more == 0 ? 1 : 0].most, bytes);
    EXPECT_EQ(simulator.messages()[more == 0 ? 0 : 1].most, 0U);
    world.costs.small_all_reduce = {};
    EXPECT_EQ(StepSimulator(world).step().step, 2) << "without a table of their own they take the time of others";
  }
}

std::vector<double> some_steps(World world, std::uint64_t seed) {
  world.seed = seed;
  world.ranks = {24, 4};
  world.costs.all_reduce = CostTable({{1, 0.125, {1, 1.1, 1.7}}});
  NodeFactors node(4);
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t s = 0; s < 100; ++s) node[r].push_back(1 + 0.001 * static_cast<double>((r * 31 + s * 17) % 97));
  }
  world.noise.nodes = {node, node};
  StepSimulator simulator(world);
  std::vector<double> out;
  for (int i = 0; i < 50; ++i) {
    const StepResult s = simulator.step();
    for (const double v : {s.step, s.stragglers, s.exposed, s.control, s.overlapped, s.slowed, s.update}) {
      out.push_back(v);
    }
    out.push_back(static_cast<double>(s.cycles));
  }
  return out;
}

TEST(Determinism, TheSameSeedGivesTheSameBitsAndAnotherOneOthers) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kNegotiated}) {
    const World world = world_of({1, 1.5, 3, 3.25, 4}, 4, schedule);
    EXPECT_EQ(some_steps(world, 1), some_steps(world, 1));
    EXPECT_NE(some_steps(world, 1), some_steps(world, 2));
  }
}

TEST(Refused, WorldsThatMakeNoSense) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const char* what, const auto& spoil) {
    World world = negotiated({1, 2}, 2);
    spoil(world);
    const std::string error = test::error_of([&] { StepSimulator{world}; });
    EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  refused("ranks", [](World& w) { w.ranks.count = 0; });
  refused("no gradients", [](World& w) { w.profile.gradients.clear(); });
  refused("time of the profile", [&](World& w) { w.profile.gradients[1].submit_seconds = nan; });
  refused("time of the profile", [](World& w) { w.profile.update_seconds = -1; });
  refused("a cost", [&](World& w) { w.costs.cycle_seconds = nan; });
  refused("slowdown", [](World& w) { w.costs.overlap_slowdown = 1.5; });
  refused("compute factor", [](World& w) { w.compute_factor = 0; });
  refused("block of noise", [](World& w) { w.noise.block_steps = 0; });
  refused("measured", [](World& w) { w.costs.all_reduce = {}; });
  refused("overlap", [](World& w) { w.profile.gradients[1].offset = 0; });
  refused("cache of 1", [](World& w) { w.negotiation.cache_capacity = 1; });

  const auto refused_by_bucket = [](Schedule schedule, const auto& spoil) {
    World world = world_of({1, 2}, 2, schedule);
    world.costs.reduce_scatter = always(1);
    world.costs.all_gather = always(1);
    EXPECT_NO_THROW(StepSimulator{world});
    spoil(world);
    EXPECT_THROW(StepSimulator{world}, Error);
  };
  refused_by_bucket(Schedule::kStatic, [](World& w) { w.buckets.pop_back(); });
  refused_by_bucket(Schedule::kStatic, [](World& w) { w.buckets[1].first = 0; });
  refused_by_bucket(Schedule::kStatic, [](World& w) { w.costs.bucket_seconds = {1}; });
  refused_by_bucket(Schedule::kSharded, [](World& w) { w.costs.reduce_scatter = {}; });
  refused_by_bucket(Schedule::kSharded, [](World& w) { w.costs.all_gather = {}; });
}

}  // namespace
}  // namespace hvd::sim::step_simulator_test
