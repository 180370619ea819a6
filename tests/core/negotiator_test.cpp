// Tests hand-written scenarios of one to three ranks. lockstep_test.cpp has random scenarios, and scenarios that must
// fail are in negotiator_errors_test.cpp.
#include "engine/core/negotiator.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/core/lockstep_world.h"
#include "tests/core/negotiator_steps.h"

namespace hvd::core::negotiator_test {
namespace {

using test::error_of;
using test::LockstepWorld;
using test::of_kind;
using test::options;
using test::step;
using test::tensor;

TEST(Negotiator, FirstThroughTheCoordinatorThenByBitsAlone) {
  LockstepWorld world(3, options());
  for (int round = 0; round < 3; ++round) {
    for (const char* name : {"a", "b", "c"}) world.submit_everywhere(tensor(name));
    EXPECT_EQ(step(world), "a+b+c");
  }
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world[rank].stats().cycles, 3U);
    EXPECT_EQ(world[rank].stats().coordinated, 1U);
    EXPECT_EQ(world[rank].stats().fast_cycles, 2U);
    EXPECT_FALSE(world[rank].has_pending());
  }
}

TEST(Negotiator, RankZerosOrderOfFirstRequestsHoldsOnAllRanks) {
  LockstepWorld world(2, options());
  for (const char* name : {"b", "a", "c"}) world[0].submit(tensor(name));
  for (const char* name : {"c", "b", "a"}) world[1].submit(tensor(name));
  EXPECT_EQ(step(world), "b+a+c");
  for (const char* name : {"a", "c", "b"}) world[0].submit(tensor(name));
  for (const char* name : {"c", "a", "b"}) world[1].submit(tensor(name));
  EXPECT_EQ(step(world), "b+a+c");  // cached tensors come in the order of their insertion
}

TEST(Negotiator, TheFirstExchangeIsTwoHeaderWordsAndOneBitPerEntry) {
  LockstepWorld world(1, options());
  const auto words = [&] { return std::get<AllReduceBits>(world[0].begin_cycle()).words; };
  world[0].submit(tensor("a"));
  EXPECT_EQ(words().size(), 2U);
  LockstepWorld full(1, options());
  for (int i = 0; i < 65; ++i) full[0].submit(tensor(std::to_string(i)));
  full.cycle();
  full[0].submit(tensor("0"));
  full[0].submit(tensor("64"));
  const auto bits = std::get<AllReduceBits>(full[0].begin_cycle()).words;
  ASSERT_EQ(bits.size(), 4U);
  EXPECT_EQ(bits[2], 1U);
  EXPECT_EQ(bits[3], 1U);
}

TEST(Negotiator, WhatIsReadyDoesNotWaitForWhatIsNot) {
  LockstepWorld world(2, options());
  for (const char* name : {"a", "b"}) world.submit_everywhere(tensor(name));
  EXPECT_EQ(step(world), "a+b");
  // a and b are cached: a is submitted on both ranks, b on rank 0 only. c and d are not: c is submitted on rank 1 only,
  // d on both ranks.
  world.submit_everywhere(tensor("a"));
  world[0].submit(tensor("b"));
  world[1].submit(tensor("c"));
  world.submit_everywhere(tensor("d"));
  EXPECT_EQ(step(world), "a+d");
  EXPECT_EQ(step(world), "");  // b and c still wait: the cycle does nothing and needs no coordinator
  EXPECT_EQ(world[0].stats().coordinated, 2U);
  world[1].submit(tensor("b"));
  EXPECT_EQ(step(world), "b");
  EXPECT_FALSE(world[0].has_pending());
  world[0].submit(tensor("c"));  // rank 1 sent its request for c three cycles ago and never again
  EXPECT_EQ(step(world), "c");
}

TEST(Negotiator, ACachedRequestIsSubmittedByItsPlaceUntilTheEntryChanges) {
  LockstepWorld world(2, options(2));
  world.submit_everywhere(tensor("a"));
  step(world);
  EXPECT_FALSE(world[0].submit_cached({}));  // the tensor has no place in the cache yet
  std::vector<CachedAt> at;
  for (std::size_t r = 0; r < 2; ++r) at.push_back(world[r].submit(tensor("a")).value());
  step(world);
  for (std::size_t r = 0; r < 2; ++r) EXPECT_TRUE(world[r].submit_cached(at[r]));
  EXPECT_EQ(error_of([&] { world[0].submit_cached(at[0]); }),
            "invalid_argument: tensor 'a' is already pending on rank 0: wait for it before submitting it again");
  EXPECT_EQ(step(world), "a");
  EXPECT_EQ(world[0].stats().coordinated, 1U);

  for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(world[r].submit(tensor("a", {5})), std::nullopt);  // another shape
  EXPECT_EQ(step(world), "a");
  EXPECT_FALSE(world[0].submit_cached(at[0]));
  at[0] = world[0].submit(tensor("a", {5})).value();
  at[1] = world[1].submit(tensor("a", {5})).value();
  step(world);
  for (const char* name : {"b", "c"}) {  // the cycles for b and c evict a
    world.submit_everywhere(tensor(name));
    step(world);
  }
  EXPECT_FALSE(world[0].submit_cached(at[0]));
  EXPECT_EQ(world[0].submit(tensor("c")).value().bit, at[0].bit);  // c now has a's bit
  EXPECT_FALSE(world[1].submit_cached(at[1]));
  at[1] = world[1].submit(tensor("c")).value();
  step(world);
}

TEST(Negotiator, TagsComeBackToEachRank) {
  for (const std::size_t capacity : {0, 8}) {
    LockstepWorld world(2, options(capacity));
    for (int round = 0; round < 3; ++round) {
      for (std::size_t r = 0; r < 2; ++r) {
        const auto tag = static_cast<Tag>(10 * r);
        world[r].submit(tensor("a"), tag + 1);
        world[r].submit(tensor("b"), tag + 2);
        world[r].submit(tensor("wrong", {static_cast<std::int64_t>(r)}), tag + 3);
      }
      if (round == 1) world[0].report_pending();
      const auto done = world.cycle();
      for (std::size_t r = 0; r < 2; ++r) {
        const auto tag = static_cast<Tag>(10 * r);
        ASSERT_EQ(done[r].batches.size(), 2U);
        EXPECT_EQ(done[r].batches[0].tags, (std::vector<Tag>{tag + 1, tag + 2}));
        EXPECT_EQ(done[r].batches[1].tags, std::vector<Tag>{tag + 3});
        EXPECT_NE(done[r].batches[1].error, "");
      }
    }
  }
}

TEST(Negotiator, RowsOfAGatherGoThroughRankZeroOnlyWhenSomebodysChange) {
  LockstepWorld world(3, options());
  const auto gather = [&](std::vector<std::int64_t> rows) {
    for (std::size_t r = 0; r < 3; ++r) world[r].submit(of_kind(Collective::kAllGather, {rows[r], 2}));
    const auto done = world.cycle();
    for (const CycleDone& rank : done) {
      ASSERT_EQ(rank.batches.size(), 1U);
      EXPECT_EQ(rank.batches[0].error, "");
      EXPECT_EQ(rank.batches[0].rows, rows);
      EXPECT_EQ(rank.batches[0].bytes, static_cast<std::size_t>(rows[0] + rows[1] + rows[2]) * 8);
    }
  };
  gather({1, 0, 7});
  gather({1, 0, 7});
  EXPECT_EQ(world[0].stats().coordinated, 1U);
  gather({1, 2, 7});
  EXPECT_EQ(world[0].stats().coordinated, 2U);
  gather({1, 2, 7});
  EXPECT_EQ(world[0].stats().coordinated, 2U);
  EXPECT_EQ(world[2].stats().fast_cycles, 2U);
}

TEST(Negotiator, OnlyAllReducesOfEqualTermsTravelTogether) {
  LockstepWorld world(2, options());
  const auto named = [](const char* name, Terms terms) {
    return Request{name, DataType::kF32, ReduceOp::kSum, {4}, terms};
  };
  const Request requests[] = {named("a", {}),
                              named("b", {Collective::kBroadcast}),
                              named("c", {Collective::kAllReduce, 0, 2, 1}),
                              named("d", {}),
                              named("e", {Collective::kBroadcast}),
                              named("f", {Collective::kAllReduce, 0, 2, 1}),
                              named("g", {Collective::kAllReduce, 0, 1, 2})};
  for (int round = 0; round < 2; ++round) {
    for (const Request& request : requests) world.submit_everywhere(request);
    EXPECT_EQ(step(world), "a+d b c+f e g");
  }
}

// A protocol without the "my entry is still valid" bit is known to hang in this case.
TEST(Negotiator, ResubmissionInAnotherFormOnOneRankDoesNotHangTheOthers) {
  const Request variants[] = {
      tensor("a", {2, 2}), {"a", DataType::kF16, ReduceOp::kSum, {4}}, {"a", DataType::kF32, ReduceOp::kMax, {4}}};
  const char* const texts[] = {
      "ranks disagree about tensor 'a': shape [4] on ranks 0, 2, [2, 2] on rank 1",
      "ranks disagree about tensor 'a': type fp32 on ranks 0, 2, fp16 on rank 1",
      "ranks disagree about tensor 'a': operation sum on ranks 0, 2, max on rank 1",
  };
  for (std::size_t i = 0; i < 3; ++i) {
    LockstepWorld world(3, options());
    for (const char* name : {"a", "b"}) world.submit_everywhere(tensor(name));
    EXPECT_EQ(step(world), "a+b");
    world[0].submit(tensor("a"));
    world[1].submit(variants[i]);
    world[2].submit(tensor("a"));
    world.submit_everywhere(tensor("b"));
    const auto done = world.cycle();
    for (const CycleDone& rank : done) {
      ASSERT_EQ(rank.batches.size(), 2U);
      EXPECT_EQ(rank.batches[0].names, std::vector<std::string_view>{"b"});
      EXPECT_EQ(rank.batches[0].error, "");
      EXPECT_EQ(rank.batches[1].names, std::vector<std::string_view>{"a"});
      EXPECT_EQ(rank.batches[1].error, texts[i]);
    }
    EXPECT_EQ(world[2].stats().invalidated, 1U);
    world.submit_everywhere(variants[i]);  // all ranks submit the new form, which is allowed
    EXPECT_EQ(step(world), "a");
    world.submit_everywhere(variants[i]);
    EXPECT_EQ(step(world), "a");
    EXPECT_EQ(world[0].stats().coordinated, 3U);
  }
}

TEST(Negotiator, TheSameNewShapeOnAllRanksReplacesTheEntry) {
  LockstepWorld world(2, options());
  world.submit_everywhere(tensor("a"));
  EXPECT_EQ(step(world), "a");
  world.submit_everywhere(tensor("a", {9}));
  EXPECT_EQ(step(world), "a");
  world.submit_everywhere(tensor("a", {9}));
  EXPECT_EQ(step(world), "a");
  EXPECT_EQ(world[1].stats().invalidated, 1U);
  EXPECT_EQ(world[1].stats().fast_cycles, 1U);
  EXPECT_EQ(world[1].cache().at(0).shape, std::vector<std::int64_t>{9});
}

TEST(Negotiator, EvictionOfAnEntryThatIsPendingSendsItToTheCoordinator) {
  LockstepWorld world(2, options(1));
  world.submit_everywhere(tensor("a"));
  EXPECT_EQ(step(world), "a");
  world[0].submit(tensor("a"));  // a is in the cache, but is submitted on only rank 0
  world.submit_everywhere(tensor("b"));
  EXPECT_EQ(step(world), "b");  // the entry for b evicts a
  EXPECT_EQ(world[0].cache().bit("a"), std::nullopt);
  world[1].submit(tensor("a"));
  EXPECT_EQ(step(world), "a");
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(world[rank].cache().bit("a"), 0U);
}

TEST(Negotiator, MoreNewTensorsInOneCycleThanTheCacheHolds) {
  LockstepWorld world(2, options(1));
  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"a", "b", "c"}) world.submit_everywhere(tensor(name));
    EXPECT_EQ(step(world), round == 0 ? "a+b+c" : "c+a+b");  // after round 0 the cache holds only c
    EXPECT_EQ(world[0].cache().size(), 1U);
  }
}

TEST(Negotiator, WithoutACacheEveryCycleIsCoordinated) {
  LockstepWorld world(2, options(0));
  for (int round = 0; round < 3; ++round) {
    world.submit_everywhere(tensor("a"));
    EXPECT_EQ(step(world), "a");
  }
  EXPECT_EQ(world[0].stats().coordinated, 3U);
}

TEST(Negotiator, OneRankAlone) {
  LockstepWorld world(1, options());
  world[0].submit(tensor("a"));
  world[0].submit(tensor("b"));
  EXPECT_EQ(step(world), "a+b");
}

TEST(Negotiator, StallsNameTheMissingRanksOnceRankZeroWasTold) {
  LockstepWorld world(4, options());
  for (const char* name : {"a", "b"}) world.submit_everywhere(tensor(name));
  EXPECT_EQ(step(world), "a+b");
  world.submit_everywhere(tensor("b"));
  world[1].submit(tensor("a"));
  world[2].submit(tensor("new"));
  EXPECT_EQ(step(world), "b");
  ASSERT_EQ(world[0].stalls().size(), 1U);
  EXPECT_EQ(world[0].stalls()[0].name, "new");
  EXPECT_EQ(world[0].stalls()[0].missing_ranks, (std::vector<int>{0, 1, 3}));
  EXPECT_TRUE(world[1].stalls().empty());

  world.submit_everywhere(tensor("b"));
  world[1].report_pending();
  EXPECT_EQ(step(world), "b");
  ASSERT_EQ(world[0].stalls().size(), 2U);
  EXPECT_EQ(world[0].stalls()[1].name, "a");
  EXPECT_EQ(world[0].stalls()[1].missing_ranks, (std::vector<int>{0, 2, 3}));
}

TEST(Negotiator, SubmissionsInTheMiddleOfACycleWaitForTheNext) {
  LockstepWorld world(2, options());
  for (const char* name : {"a", "b"}) world.submit_everywhere(tensor(name));
  EXPECT_EQ(step(world), "a+b");
  world.submit_everywhere(tensor("a"));
  bool first = true;
  const auto done = world.cycle([&] {
    if (std::exchange(first, false)) world.submit_everywhere(tensor("b"));
  });
  EXPECT_EQ(done[0].batches.size(), 1U);
  EXPECT_EQ(done[0].batches[0].names, std::vector<std::string_view>{"a"});
  EXPECT_EQ(step(world), "b");
}

}  // namespace
}  // namespace hvd::core::negotiator_test
