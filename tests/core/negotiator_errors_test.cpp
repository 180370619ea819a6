// Tests negotiations that must fail with the same text on all ranks: disagreements, bad submissions, corrupt messages.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/core/negotiator.h"
#include "tests/core/lockstep_world.h"
#include "tests/core/negotiator_steps.h"

namespace hvd::core::negotiator_errors_test {
namespace {

using test::error_of;
using test::LockstepWorld;
using test::of_kind;
using test::options;
using test::step;
using test::tensor;

TEST(NegotiatorErrors, WhatRanksDisagreeAboutIsNamedWithNumbers) {
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
  for (const Case& c : cases) {
    LockstepWorld world(3, options());
    for (int round = 0; round < 2; ++round) {  // round 0 negotiates by requests, round 1 from the cache
      for (std::size_t r = 0; r < 3; ++r) world[r].submit(r == 1 ? c.other : c.usual);
      for (const CycleDone& rank : world.cycle()) {
        ASSERT_EQ(rank.batches.size(), 1U);
        EXPECT_EQ(rank.batches[0].error, "ranks disagree about tensor 'a': " + c.text);
      }
      world.submit_everywhere(c.usual);
      EXPECT_EQ(step(world), "a");
    }
  }
}

TEST(NegotiatorErrors, RowsThatNobodyCanCountFailOnAllRanks) {
  LockstepWorld world(2, options());
  world.submit_everywhere(of_kind(Collective::kAllGather, {std::int64_t{1} << 59}));
  EXPECT_EQ(step(world), "a");
  world.submit_everywhere(of_kind(Collective::kAllGather, {std::int64_t{1} << 60}));
  for (const CycleDone& rank : world.cycle()) {
    EXPECT_NE(rank.batches[0].error.find("more than 64 bits can count"), std::string::npos) << rank.batches[0].error;
  }
}

TEST(NegotiatorErrors, MismatchTextNamesEveryAttributeThatDiffersAndStaysOneLine) {
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

TEST(NegotiatorErrors, BadSubmissions) {
  LockstepWorld world(2, options());
  world[1].submit(tensor("a"));
  EXPECT_EQ(error_of([&] { world[1].submit(tensor("a")); }),
            "invalid_argument: tensor 'a' is already pending on rank 1: wait for it before submitting it again");
  world[0].submit(tensor("a"));
  EXPECT_EQ(step(world), "a");
  world[1].submit(tensor("a"));
  test::expect_error(Errc::kInvalidArgument, "", [&] { world[1].submit(tensor("a", {5})); });
  EXPECT_EQ(error_of([&] {
              world[1].submit(tensor("n", {2, -3}));
            }),
            "invalid_argument: tensor 'n': shape [2, -3] has a negative extent");
  EXPECT_EQ(world[1].pending_count(), 1U);
  EXPECT_THROW(Negotiator(2, 2, {}), Error);
}

TEST(NegotiatorErrors, RanksWithOtherOptionsFindOutInTheFirstExchange) {
  Negotiator a(0, 2, options(1024, 1000)), b(1, 2, options(1024, 2000));
  a.submit(tensor("x"));
  b.submit(tensor("x"));
  auto words = std::get<AllReduceBits>(a.begin_cycle()).words;
  const auto others = std::get<AllReduceBits>(b.begin_cycle()).words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] &= others[i];
  for (Negotiator* rank : {&a, &b}) {
    test::expect_error(Errc::kMismatch, "HOROVOD_FUSION_THRESHOLD", [&] { rank->on_bits(words); });
  }
}

TEST(NegotiatorErrors, AnUnrequestedAnswerIsInvalidArgumentAndNoMismatch) {
  // A real mismatch is found by all ranks, so the engine need not tell other ranks. Only rank 1 finds the error tested
  // here.
  Negotiator zero(0, 2, options()), other(1, 2, options()), mine(1, 2, options());
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
  EXPECT_EQ(error_of([&] { static_cast<void>(mine.on_broadcast(answer)); }),
            "invalid_argument: rank 0 answered for tensor 'other', which rank 1 has not asked for in that form");
}

TEST(NegotiatorErrors, CorruptMessagesAreErrorsOnEveryPath) {
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
          // Both ranks get the same corrupt words, because different status bits would lead to different collectives.
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
}  // namespace hvd::core::negotiator_errors_test
