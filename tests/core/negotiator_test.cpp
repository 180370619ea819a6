// Hand-written scenarios of two or three ranks; lockstep_test.cpp has the random ones.
#include "engine/core/negotiator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/core/lockstep_world.h"

namespace hvd::core::negotiator_test {
namespace {

using test::LockstepWorld;

Request tensor(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  return {name, DataType::kF32, ReduceOp::kSum, std::move(shape)};
}

NegotiatorOptions options(std::size_t capacity = 1024, std::size_t threshold = 1 << 20) {
  NegotiatorOptions result;
  result.cache_capacity = capacity;
  result.fusion.threshold_bytes = threshold;
  return result;
}

/// Runs a cycle, expects the same batches on all ranks, and prints them: "a+b c !d" (! failed).
std::string step(LockstepWorld& world) {
  EXPECT_TRUE(world.all_want_cycle());
  const auto done = world.cycle();
  for (const CycleDone& other : done) EXPECT_EQ(other.batches, done.front().batches);
  std::string text;
  for (const Batch& batch : done.front().batches) {
    text += (text.empty() ? "" : " ") + std::string(batch.error.empty() ? "" : "!");
    for (const std::string_view name : batch.names) text.append(name == batch.names.front() ? "" : "+").append(name);
  }
  return text;
}

template <class Act>
std::string message_of(Errc code, Act act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

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
    EXPECT_FALSE(world[rank].wants_cycle());
  }
}

TEST(Negotiator, RankZerosOrderOfFirstRequestsHoldsOnAllRanks) {
  LockstepWorld world(2, options());
  for (const char* name : {"b", "a", "c"}) world[0].submit(tensor(name));
  for (const char* name : {"c", "b", "a"}) world[1].submit(tensor(name));
  EXPECT_EQ(step(world), "b+a+c");
  for (const char* name : {"a", "c", "b"}) world[0].submit(tensor(name));
  for (const char* name : {"c", "a", "b"}) world[1].submit(tensor(name));
  EXPECT_EQ(step(world), "b+a+c");  // in the order of insertion, because both are cached
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
  // Cached: a is submitted on both ranks, b on rank 0 only. Uncached: c on rank 1 only, d on both.
  world.submit_everywhere(tensor("a"));
  world[0].submit(tensor("b"));
  world[1].submit(tensor("c"));
  world.submit_everywhere(tensor("d"));
  EXPECT_EQ(step(world), "a+d");
  EXPECT_EQ(step(world), "");  // b and c still wait: the cycle does nothing and needs no coordinator
  EXPECT_EQ(world[0].stats().coordinated, 2U);
  world[1].submit(tensor("b"));
  EXPECT_EQ(step(world), "b");
  EXPECT_FALSE(world[0].wants_cycle());
  world[0].submit(tensor("c"));  // rank 1 sent its request for c three cycles ago, and only once
  EXPECT_EQ(step(world), "c");
}

TEST(Negotiator, ACachedRequestIsSubmittedByItsPlaceUntilTheEntryChanges) {
  LockstepWorld world(2, options(2));
  world.submit_everywhere(tensor("a"));
  step(world);
  EXPECT_FALSE(world[0].submit_cached({}));  // has no place in the cache yet
  std::vector<CachedAt> at;
  for (std::size_t r = 0; r < 2; ++r) at.push_back(world[r].submit(tensor("a")).value());
  step(world);
  for (std::size_t r = 0; r < 2; ++r) EXPECT_TRUE(world[r].submit_cached(at[r]));
  EXPECT_EQ(message_of(Errc::kInvalidArgument, [&] { world[0].submit_cached(at[0]); }),
            "tensor 'a' is already pending on rank 0: wait for it before submitting it again");
  EXPECT_EQ(step(world), "a");
  EXPECT_EQ(world[0].stats().coordinated, 1U);

  for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(world[r].submit(tensor("a", {5})), std::nullopt);  // another shape
  EXPECT_EQ(step(world), "a");
  EXPECT_FALSE(world[0].submit_cached(at[0]));
  at[0] = world[0].submit(tensor("a", {5})).value();
  at[1] = world[1].submit(tensor("a", {5})).value();
  step(world);
  for (const char* name : {"b", "c"}) {  // evicts a
    world.submit_everywhere(tensor(name));
    step(world);
  }
  EXPECT_FALSE(world[0].submit_cached(at[0]));
  EXPECT_EQ(world[0].submit(tensor("c")).value().bit, at[0].bit);  // c now has a's bit
  EXPECT_FALSE(world[1].submit_cached(at[1]));
  at[1] = world[1].submit(tensor("c")).value();
  step(world);
  world[1].request_shutdown();
  EXPECT_EQ(message_of(Errc::kInvalidArgument, [&] { world[1].submit_cached(at[1]); }),
            "tensor 'c' submitted on rank 1 after this rank asked to shut down");
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

Request of_kind(Collective kind, std::vector<std::int64_t> shape = {4}) {
  Request request = tensor("a", std::move(shape));
  request.terms.kind = kind;
  return request;
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

TEST(Negotiator, WhatRanksDisagreeAboutIsNamedWithNumbers) {
  const auto broadcast_from = [](int root) {
    Request request = of_kind(Collective::kBroadcast);
    request.terms.root = root;
    return request;
  };
  const auto scaled = [](double before, double after) {
    Request request = tensor("a");
    request.terms.prescale = before;
    request.terms.postscale = after;
    return request;
  };
  struct Case {
    Request usual;
    Request other;  // what rank 1 submits
    std::string text;
  };
  const Case cases[] = {
      {tensor("a"), of_kind(Collective::kBroadcast), "kind all_reduce on ranks 0, 2, broadcast on rank 1"},
      {broadcast_from(0), broadcast_from(2), "root 0 on ranks 0, 2, 2 on rank 1"},
      {scaled(0.5, 1), scaled(0.5, 2), "scale factors 0.5 and 1 on ranks 0, 2, 0.5 and 2 on rank 1"},
      {of_kind(Collective::kAllGather, {1, 3}), of_kind(Collective::kAllGather, {1, 4}),
       "shape [*, 3] on ranks 0, 2, [*, 4] on rank 1"},
      {of_kind(Collective::kAllGather, {1, 3}), of_kind(Collective::kAllGather, {12}),
       "shape [*, 3] on ranks 0, 2, [*] on rank 1"},
      {of_kind(Collective::kReduceScatter, {6}), of_kind(Collective::kReduceScatter, {7}),
       "shape [6] on ranks 0, 2, [7] on rank 1"},
      {of_kind(Collective::kGroupedAllReduce, {1, 5, 0}), of_kind(Collective::kGroupedAllReduce, {1, 5, 1, 1}),
       "shape [5] [] on ranks 0, 2, [5] [1] on rank 1"},
  };
  for (const Case& one : cases) {
    LockstepWorld world(3, options());
    for (int round = 0; round < 2; ++round) {  // first by requests, then from the cache
      for (std::size_t r = 0; r < 3; ++r) world[r].submit(r == 1 ? one.other : one.usual);
      for (const CycleDone& rank : world.cycle()) {
        ASSERT_EQ(rank.batches.size(), 1U);
        EXPECT_EQ(rank.batches[0].error, "ranks disagree about tensor 'a': " + one.text);
      }
      world.submit_everywhere(one.usual);
      EXPECT_EQ(step(world), "a");
    }
  }
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

TEST(Negotiator, RowsThatNobodyCanCountFailOnAllRanks) {
  LockstepWorld world(2, options());
  world.submit_everywhere(of_kind(Collective::kAllGather, {std::int64_t{1} << 59}));
  EXPECT_EQ(step(world), "a");
  world.submit_everywhere(of_kind(Collective::kAllGather, {std::int64_t{1} << 60}));
  for (const CycleDone& rank : world.cycle()) {
    EXPECT_NE(rank.batches[0].error.find("more than 64 bits can count"), std::string::npos) << rank.batches[0].error;
  }
}

// Without the "my entry is still valid" bit, the protocol is known to hang here.
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
    world.submit_everywhere(variants[i]);  // all ranks take the new form, which is allowed
    EXPECT_EQ(step(world), "a");
    world.submit_everywhere(variants[i]);
    EXPECT_EQ(step(world), "a");
    EXPECT_EQ(world[0].stats().coordinated, 3U);
  }
}

TEST(Negotiator, MismatchTextNamesEveryAttributeThatDiffersAndStaysOneLine) {
  LockstepWorld world(512, options());
  for (std::size_t rank = 0; rank < 512; ++rank) {
    world[rank].submit({"w",
                        rank == 3 ? DataType::kBF16 : DataType::kF32,
                        ReduceOp::kSum,
                        {static_cast<std::int64_t>(rank < 500 ? 7 : rank)}});
  }
  const auto done = world.cycle();
  for (const CycleDone& rank : done) {
    ASSERT_EQ(rank.batches.size(), 1U);
    EXPECT_EQ(rank.batches[0].error,
              "ranks disagree about tensor 'w': type fp32 on ranks 0-2, 4-511, bf16 on rank 3; shape [7] on ranks "
              "0-499, [500] on rank 500, [501] on rank 501, [502] on rank 502, [503] on rank 503, [504] on rank 504, "
              "and 7 more");
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
  world[0].submit(tensor("a"));  // a hit, on rank 0 only
  world.submit_everywhere(tensor("b"));
  EXPECT_EQ(step(world), "b");  // evicts a
  EXPECT_EQ(world[0].cache().bit("a"), std::nullopt);
  world[1].submit(tensor("a"));
  EXPECT_EQ(step(world), "a");
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(world[rank].cache().bit("a"), 0U);
}

TEST(Negotiator, MoreNewTensorsInOneCycleThanTheCacheHolds) {
  LockstepWorld world(2, options(1));
  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"a", "b", "c"}) world.submit_everywhere(tensor(name));
    EXPECT_EQ(step(world), round == 0 ? "a+b+c" : "c+a+b");  // the cache still holds c alone
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
  world[0].request_shutdown();
  EXPECT_TRUE(world.cycle()[0].shutdown);
}

TEST(Negotiator, ShutdownEndsWhenAllAskedAndWhatIsPendingStillCompletes) {
  LockstepWorld world(2, options());
  world.submit_everywhere(tensor("a"));
  EXPECT_EQ(step(world), "a");
  world.submit_everywhere(tensor("a"));
  world[0].submit(tensor("b"));
  world[0].request_shutdown();
  auto done = world.cycle();
  EXPECT_FALSE(done[0].shutdown);
  EXPECT_EQ(done[0].batches, done[1].batches);
  ASSERT_EQ(done[0].batches.size(), 1U);  // the batch is a; b may still come from rank 1, which is alive
  world[1].submit(tensor("b"));
  world[1].request_shutdown();
  done = world.cycle();
  ASSERT_EQ(done[1].batches.size(), 1U);
  EXPECT_EQ(done[1].batches[0].error, "");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(done[rank].shutdown);
    EXPECT_FALSE(world[rank].wants_cycle());
  }
  EXPECT_THROW(world[0].begin_cycle(), std::logic_error);
}

TEST(Negotiator, WhatAStoppedRankHasNotSubmittedFailsOnTheRanksThatHoldIt) {
  LockstepWorld world(3, options());
  for (const char* name : {"cached", "other"}) world.submit_everywhere(tensor(name));
  EXPECT_EQ(step(world), "cached+other");
  world[0].submit(tensor("cached"));
  world[0].submit(tensor("fresh"));
  world[1].submit(tensor("fresh"));
  world[2].request_shutdown();
  const auto done = world.cycle();
  ASSERT_EQ(done[0].batches.size(), 2U);
  EXPECT_EQ(done[0].batches[0].names, std::vector<std::string_view>{"fresh"});
  EXPECT_EQ(done[0].batches[0].error,
            "tensor 'fresh' can never be completed: rank 2 shut down without submitting it; submitted by ranks 0-1");
  EXPECT_EQ(done[0].batches[1].error,
            "tensor 'cached' can never be completed: rank 2 shut down without submitting it; submitted by rank 0");
  ASSERT_EQ(done[1].batches.size(), 1U);
  EXPECT_EQ(done[1].batches[0], done[0].batches[0]);
  EXPECT_TRUE(done[2].batches.empty());
  EXPECT_FALSE(world[0].has_pending());
}

TEST(Negotiator, BadSubmissions) {
  LockstepWorld world(2, options());
  world[1].submit(tensor("a"));
  EXPECT_EQ(message_of(Errc::kInvalidArgument, [&] { world[1].submit(tensor("a")); }),
            "tensor 'a' is already pending on rank 1: wait for it before submitting it again");
  world[0].submit(tensor("a"));
  EXPECT_EQ(step(world), "a");
  world[1].submit(tensor("a"));
  EXPECT_NE(message_of(Errc::kInvalidArgument, [&] { world[1].submit(tensor("a", {5})); }), "no error");
  EXPECT_EQ(message_of(Errc::kInvalidArgument,
                       [&] {
                         world[1].submit(tensor("n", {2, -3}));
                       }),
            "tensor 'n': shape [2, -3] has a negative extent");
  EXPECT_EQ(world[1].pending_count(), 1U);
  world[1].request_shutdown();
  EXPECT_EQ(message_of(Errc::kInvalidArgument, [&] { world[1].submit(tensor("z")); }),
            "tensor 'z' submitted on rank 1 after this rank asked to shut down");
  EXPECT_THROW(Negotiator(2, 2, {}), Error);
}

TEST(Negotiator, RanksWithOtherOptionsFindOutInTheFirstExchange) {
  Negotiator a(0, 2, options(1024, 1000));
  Negotiator b(1, 2, options(1024, 2000));
  a.submit(tensor("x"));
  b.submit(tensor("x"));
  auto words = std::get<AllReduceBits>(a.begin_cycle()).words;
  const auto others = std::get<AllReduceBits>(b.begin_cycle()).words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] &= others[i];
  for (Negotiator* rank : {&a, &b}) {
    const auto text = message_of(Errc::kMismatch, [&] { rank->on_bits(words); });
    EXPECT_NE(text.find("HOROVOD_FUSION_THRESHOLD"), std::string::npos) << text;
  }
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

TEST(Negotiator, AnUnrequestedAnswerIsInvalidArgumentAndNoMismatch) {
  // All ranks find a real mismatch at once, so the engine tells no other rank. Only rank 1 sees this error.
  Negotiator zero(0, 2, options());
  Negotiator other(1, 2, options());
  Negotiator mine(1, 2, options());
  zero.submit(tensor("other"));
  other.submit(tensor("other"));
  mine.submit(tensor("mine"));
  const auto gather = [](Negotiator& rank) {
    const auto words = std::get<AllReduceBits>(rank.begin_cycle()).words;
    return std::get<Gather>(rank.on_bits(words)).message;
  };
  const std::vector<Bytes> messages{gather(zero), gather(other)};
  const Bytes answer = std::get<Broadcast>(zero.on_gathered(messages)).message;
  gather(mine);
  static_cast<void>(mine.on_gathered({}));
  EXPECT_EQ(message_of(Errc::kInvalidArgument, [&] { static_cast<void>(mine.on_broadcast(answer)); }),
            "rank 0 answered for tensor 'other', which rank 1 has not asked for in that form");
}

TEST(Negotiator, CorruptMessagesAreErrorsOnEveryPath) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    LockstepWorld world(2, options(2));
    for (const char* name : {"a", "b"}) world.submit_everywhere(tensor(name));
    world.cycle();
    world.submit_everywhere(tensor("a"));
    world[0].submit(tensor("b", {5}));
    world[1].submit(tensor("b"));
    world.submit_everywhere(tensor("c"));

    const auto corrupt = [&](auto& items, std::uint64_t one_in) {
      if (items.empty() || random() % one_in != 0) return;
      using Item = typename std::decay_t<decltype(items)>::value_type;
      items[random() % items.size()] = static_cast<Item>(random());
      if (random() % 3 == 0) items.resize(random() % (items.size() + 2));
    };
    try {
      Action mine = world[0].begin_cycle();
      Action other = world[1].begin_cycle();
      while (!std::holds_alternative<CycleDone>(mine)) {
        if (auto* bits = std::get_if<AllReduceBits>(&mine)) {
          auto words = bits->words;
          const auto& theirs = std::get<AllReduceBits>(other).words;
          for (std::size_t i = 0; i < words.size(); ++i) {
            words[i] = bits->op == BitOp::kAnd ? words[i] & theirs[i] : words[i] | theirs[i];
          }
          // Flipped status bits may send ranks different ways, so both ranks get the same corrupt words.
          corrupt(words, 3);
          mine = world[0].on_bits(words);
          other = world[1].on_bits(words);
        } else if (auto* gather = std::get_if<Gather>(&mine)) {
          std::vector<Bytes> messages{gather->message, std::get<Gather>(other).message};
          corrupt(messages[1], 2);
          mine = world[0].on_gathered(messages);
          other = world[1].on_gathered({});
        } else {
          Bytes answer = std::get<Broadcast>(mine).message;
          corrupt(answer, 1);
          other = world[1].on_broadcast(answer);
          mine = world[0].on_broadcast(answer);
        }
      }
    } catch (const Error&) {  // expected
    } catch (const std::exception& error) {
      FAIL() << "not an Error: " << error.what();
    }
  }
}

}  // namespace
}  // namespace hvd::core::negotiator_test
