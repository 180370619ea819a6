// Tests operations with tickets over loopback: results, ragged sizes, groups, factors, and disagreements between ranks.
#include "engine/runtime/operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "engine/base/float16.h"
#include "engine/base/scale.h"
#include "tests/base/errors.h"
#include "tests/runtime/ranks.h"

namespace hvd::operations_test {
namespace {

using test::expect_all_good;
using test::expect_error;
using test::on_ranks;
using test::patient_options;
using Shape = std::vector<std::int64_t>;

template <class T>
std::vector<T> values_of(const Output& output) {
  std::vector<T> values(output.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), output.bytes.data(), output.bytes.size());
  return values;
}

/// Runs the test on 1, 2 and 5 ranks.
void on_worlds(const std::function<void(Engine&, int)>& body) {
  for (const int size : {1, 2, 5}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    expect_all_good(on_ranks(size, patient_options(Schedule::kNegotiated), body));
  }
}

TEST(Operations, GatherTakesRowsOfEveryLength) {
  on_worlds([](Engine& engine, int rank) {
    for (int round = 0; round < 6; ++round) {
      // Rounds 2k and 2k + 1 have the same sizes, so round 2k + 1 uses the cache. Rank 1 sometimes has no rows.
      const auto rows_of = [round](int r) { return (r * 3 + round / 2) % 4; };
      const std::vector<std::int32_t> mine(static_cast<std::size_t>(rows_of(rank)) * 2, rank * 10 + round);
      const Output output =
          engine.take_output(engine.all_gather_async("g", mine.data(), Shape{rows_of(rank), 2}, DataType::kI32));
      std::vector<std::int32_t> expected;
      Shape rows;
      for (int r = 0; r < engine.size(); ++r) {
        rows.push_back(rows_of(r));
        expected.insert(expected.end(), static_cast<std::size_t>(rows_of(r)) * 2, r * 10 + round);
      }
      EXPECT_EQ(output.rows, rows);
      EXPECT_EQ(values_of<std::int32_t>(output), expected);
    }
    EXPECT_GT(engine.cycle_stats().fast_cycles, 0U);
  });
}

TEST(Operations, ReduceScatterGivesTheFirstRanksTheOddRows) {
  on_worlds([](Engine& engine, int rank) {
    const int size = engine.size();
    for (const std::int64_t rows : {0, 3, 10, 11}) {
      std::vector<float> data(static_cast<std::size_t>(rows) * 3);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i) + static_cast<float>(rank);
      const std::vector<float> before = data;
      const Output output = engine.take_output(
          engine.reduce_scatter_async("s", data.data(), Shape{rows, 3}, DataType::kF32, ReduceOp::kSum, {2, 0.5}));
      EXPECT_EQ(data, before);
      EXPECT_EQ(output.rows, share_rows(rows, size));
      const auto first = std::accumulate(output.rows.begin(), output.rows.begin() + rank, std::int64_t{0}) * 3;
      const auto mine = values_of<float>(output);
      ASSERT_EQ(mine.size(), static_cast<std::size_t>(output.rows[static_cast<std::size_t>(rank)]) * 3);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto at = static_cast<float>(first) + static_cast<float>(i);
        EXPECT_EQ(mine[i], at * static_cast<float>(size) + static_cast<float>(size * (size - 1) / 2));
      }
    }
  });
}

TEST(Operations, BroadcastFromEveryRank) {
  on_worlds([](Engine& engine, int rank) {
    for (int root = 0; root < engine.size(); ++root) {
      std::vector<double> data(17, rank + 0.5);
      engine.wait(engine.broadcast_async("b", data.data(), Shape{17}, DataType::kF64, root));
      EXPECT_EQ(data, std::vector<double>(17, root + 0.5));
    }
  });
}

TEST(Operations, AllToAllWithSplitsThatNobodyElseKnows) {
  on_worlds([](Engine& engine, int rank) {
    const int size = engine.size();
    for (int round = 0; round < 4; ++round) {
      const auto split = [&](int from, int to) { return (from * 5 + to * 3 + round) % 4; };
      Shape splits;
      std::vector<std::int16_t> data;
      for (int to = 0; to < size; ++to) {
        splits.push_back(split(rank, to));
        data.insert(data.end(), static_cast<std::size_t>(split(rank, to)) * 2,
                    static_cast<std::int16_t>(rank * 100 + to));
      }
      const std::int64_t rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
      const Output output =
          engine.take_output(engine.all_to_all_async("x", data.data(), Shape{rows, 2}, splits, DataType::kI16));
      std::vector<std::int16_t> expected;
      for (int from = 0; from < size; ++from) {
        EXPECT_EQ(output.rows[static_cast<std::size_t>(from)], split(from, rank));
        expected.insert(expected.end(), static_cast<std::size_t>(split(from, rank)) * 2,
                        static_cast<std::int16_t>(from * 100 + rank));
      }
      EXPECT_EQ(values_of<std::int16_t>(output), expected);
    }
    // Without splits, every rank gets the same number of rows.
    std::vector<std::int64_t> sent(static_cast<std::size_t>(size));
    std::iota(sent.begin(), sent.end(), rank * 100);
    const Output even =
        engine.take_output(engine.all_to_all_async("even", sent.data(), Shape{size}, {}, DataType::kI64));
    for (int from = 0; from < size; ++from) {
      EXPECT_EQ(values_of<std::int64_t>(even)[static_cast<std::size_t>(from)], from * 100 + rank);
    }
  });
}

TEST(Operations, AGroupIsReducedTogetherAndOnlyTogether) {
  on_worlds([](Engine& engine, int rank) {
    std::vector<float> a(5, 1), b(1, 2), c;
    const Shape five{5}, scalar, none{0};
    const std::array<GroupTensor, 3> group{{{a.data(), five}, {b.data(), scalar}, {c.data(), none}}};
    for (int round = 0; round < 3; ++round) {
      std::fill(a.begin(), a.end(), static_cast<float>(rank));
      b[0] = static_cast<float>(rank + round);
      const Ticket ticket = engine.grouped_all_reduce_async("pair", group, DataType::kF32, ReduceOp::kMax, {1, 2});
      engine.wait(ticket);
      EXPECT_EQ(a, std::vector<float>(5, static_cast<float>(engine.size() - 1) * 2));
      EXPECT_EQ(b[0], static_cast<float>(engine.size() - 1 + round) * 2);
    }
    if (engine.size() == 1) return;
    // In rank 1's group one tensor has another shape than on the other ranks. The group fails, and neither tensor may
    // be changed.
    std::fill(a.begin(), a.end(), 7.0F);
    const std::array<GroupTensor, 2> other{{{a.data(), rank == 1 ? scalar : five}, {b.data(), scalar}}};
    const Ticket ticket = engine.grouped_all_reduce_async("pair", other, DataType::kF32, ReduceOp::kMax);
    expect_error(Errc::kMismatch, "shape [5] [] on rank", [&] { engine.wait(ticket); });
    EXPECT_EQ(a, std::vector<float>(5, 7.0F));
  });
}

/// Runs in a new engine, because its fusion buffer has no memory yet.
TEST(Operations, EmptyTensorsAreDoneWithoutAFusionBuffer) {
  on_worlds([](Engine& engine, int rank) {
    std::vector<float> a(3, 1), b(3, 2);
    const Shape none{0}, rows{0, 4}, three{3};
    const std::array<GroupTensor, 2> group{{{a.data(), none}, {b.data(), rows}}};
    engine.wait(engine.grouped_all_reduce_async("empty group", group, DataType::kF32, ReduceOp::kSum));
    std::vector<Ticket> tickets;
    for (const auto& [name, data] : {std::pair{"x", a.data()}, std::pair{"y", b.data()}}) {
      tickets.push_back(engine.all_reduce_async(name, data, none, DataType::kF32, ReduceOp::kSum));
    }
    for (const Ticket ticket : tickets) engine.wait(ticket);
    EXPECT_EQ(a, std::vector<float>(3, 1));
    EXPECT_EQ(b, std::vector<float>(3, 2));
    a.assign(3, static_cast<float>(rank));
    engine.wait(engine.all_reduce_async("full", a.data(), three, DataType::kF32, ReduceOp::kMax));
    EXPECT_EQ(a, std::vector<float>(3, static_cast<float>(engine.size() - 1)));
  });
}

TEST(Operations, AStepCountsTheBytesThatAnAllToAllReceives) {
  expect_all_good(on_ranks(3, patient_options(Schedule::kNegotiated), [](Engine& engine, int rank) {
    const auto memory = engine.allocate(4 * sizeof(float));
    engine.set_gradients({{"weight", 0, 4}}, memory.data(), DataType::kF32, ReduceOp::kSum);
    const Shape splits{1, 2, 3};  // rank r gets 3 * (r + 1) rows of 5 elements
    const std::vector<float> rows(6 * 5);
    engine.begin_step();
    const Output output =
        engine.take_output(engine.all_to_all_async("x", rows.data(), Shape{6, 5}, splits, DataType::kF32));
    engine.gradient_ready(0);
    const StepReport report = engine.finish_step();
    const std::size_t received = static_cast<std::size_t>(3 * (rank + 1)) * 5 * sizeof(float);
    EXPECT_EQ(output.bytes.size(), received);
    EXPECT_EQ(report.bytes, received + 4 * sizeof(float));
  }));
}

TEST(Operations, OutOfPlaceKeepsTheInputAlsoWhereTensorsAreFused) {
  on_worlds([](Engine& engine, int rank) {
    for (const std::size_t tensors : {std::size_t{1}, std::size_t{9}}) {
      std::vector<std::vector<double>> in(tensors), out(tensors);
      std::vector<Ticket> tickets;
      for (std::size_t t = 0; t < tensors; ++t) {
        in[t].assign(t + 1, rank + 1.0);
        out[t].assign(t + 1, -1);
        const auto rows = static_cast<std::int64_t>(t + 1);
        tickets.push_back(engine.all_reduce_into_async("t" + std::to_string(t), out[t].data(), in[t].data(),
                                                       Shape{rows}, DataType::kF64, ReduceOp::kAverage, {3, 0.25}));
      }
      for (const Ticket ticket : tickets) engine.wait(ticket);
      for (std::size_t t = 0; t < tensors; ++t) {
        EXPECT_EQ(in[t], std::vector<double>(t + 1, rank + 1.0));
        for (const double value : out[t]) EXPECT_DOUBLE_EQ(value, (engine.size() + 1) / 2.0 * 0.75);
      }
    }
  });
}

TEST(Operations, ABarrierIsDoneWhenAllHaveComeAndNotBefore) {
  std::atomic<int> come{0};
  expect_all_good(on_ranks(3, patient_options(Schedule::kNegotiated), [&](Engine& engine, int rank) {
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ++come;
    engine.wait(engine.barrier_async("meet"));
    EXPECT_EQ(come.load(), 3);
  }));
}

TEST(Operations, ScalingRoundsOnce) {
  std::vector<float> singles{1, -3, 0, std::numeric_limits<float>::infinity()};
  scale(reinterpret_cast<std::byte*>(singles.data()), 4, DataType::kF32, 0.1);
  EXPECT_EQ(singles, (std::vector<float>{static_cast<float>(1 * 0.1), static_cast<float>(-3 * 0.1), 0,
                                         std::numeric_limits<float>::infinity()}));
  std::array<std::uint16_t, 2> halves{float_to_fp16(1.5F), float_to_fp16(-2)};
  scale(reinterpret_cast<std::byte*>(halves.data()), 2, DataType::kF16, 3);
  EXPECT_EQ(fp16_to_float(halves[0]), 4.5F);
  EXPECT_EQ(fp16_to_float(halves[1]), -6.0F);
  std::array<std::uint16_t, 1> brain{float_to_bf16(1.5F)};
  scale(reinterpret_cast<std::byte*>(brain.data()), 1, DataType::kBF16, 3);
  EXPECT_EQ(bf16_to_float(brain[0]), 4.5F);
}

/// Each product lies very close to the midpoint between two neighbouring 16-bit values. Rounding the product to float
/// first would give the midpoint itself. The midpoint would then be rounded to the neighbour whose last bit is even.
TEST(Operations, ScalingOfHalvesDoesNotRoundToFloatFirst) {
  constexpr double kLittle = 0x1p-40;
  const auto fp16 = [](double factor) {
    std::uint16_t value = float_to_fp16(1);
    scale(reinterpret_cast<std::byte*>(&value), 1, DataType::kF16, factor);
    return fp16_to_float(value);
  };
  const auto bf16 = [](double factor) {
    std::uint16_t value = float_to_bf16(1);
    scale(reinterpret_cast<std::byte*>(&value), 1, DataType::kBF16, factor);
    return bf16_to_float(value);
  };
  for (const double sign : {1.0, -1.0}) {
    const auto expected = [sign](double value) { return static_cast<float>(sign * value); };
    EXPECT_EQ(fp16(sign * (1 + 0x1p-11 + kLittle)), expected(1 + 0x1p-10));
    EXPECT_EQ(fp16(sign * (1 + 0x1p-11)), expected(1)) << "the middle goes to the even one";
    EXPECT_EQ(fp16(sign * (1 + 0x3p-11 - kLittle)), expected(1 + 0x1p-10));
    EXPECT_EQ(fp16(sign * (0x1p-25 + 0x1p-60)), expected(0x1p-24)) << "just above half of the smallest value";
    EXPECT_EQ(fp16(sign * 1e300), expected(std::numeric_limits<float>::infinity()));
    EXPECT_EQ(bf16(sign * (1 + 0x1p-8 + kLittle)), expected(1 + 0x1p-7));
    EXPECT_EQ(bf16(sign * (1 + 0x3p-8 - kLittle)), expected(1 + 0x1p-7));
    EXPECT_EQ(bf16(sign * 1e300), expected(std::numeric_limits<float>::infinity()));
  }
  EXPECT_TRUE(std::isnan(fp16(std::nan(""))));
}

/// Runs every operation on 2 ranks that ask for different things. Afterwards every operation must still work.
TEST(Operations, RanksThatDisagreeGetTheSameErrorAndGoOn) {
  std::array<std::vector<std::string>, 2> texts;
  expect_all_good(on_ranks(2, patient_options(Schedule::kNegotiated), [&](Engine& engine, int rank) {
    const bool odd = rank == 1;
    std::vector<float> data(12, 1);
    const auto fails = [&](Ticket ticket) {
      while (!engine.done(ticket)) std::this_thread::yield();
      const auto told = engine.error_of(ticket);
      ASSERT_TRUE(told.has_value());
      EXPECT_EQ(told->code(), Errc::kMismatch);
      texts[static_cast<std::size_t>(rank)].emplace_back(told->what());
      expect_error(Errc::kMismatch, told->what(), [&] { engine.wait(ticket); });
      expect_error(Errc::kInvalidArgument, "waited for already", [&] { static_cast<void>(engine.error_of(ticket)); });
    };
    const Shape shape{12}, rows{6, 2}, other{4, 3};
    constexpr auto kF32 = DataType::kF32;
    for (int round = 0; round < 2; ++round) {
      fails(odd ? engine.broadcast_async("kind", data.data(), shape, kF32, 0)
                : engine.all_gather_async("kind", data.data(), shape, kF32));
      fails(engine.broadcast_async("root", data.data(), shape, kF32, rank));
      fails(engine.all_gather_async("row", data.data(), odd ? rows : other, kF32));
      fails(engine.all_to_all_async("cell", data.data(), odd ? rows : other, {}, kF32));
      fails(engine.reduce_scatter_async("op", data.data(), rows, kF32, odd ? ReduceOp::kMin : ReduceOp::kSum));
      fails(engine.all_reduce_async("factor", data.data(), rows, kF32, ReduceOp::kSum, {1, odd ? 2.0 : 3.0}));
    }
    EXPECT_EQ(data, std::vector<float>(12, 1));
    const Ticket fine = engine.all_reduce_async("factor", data.data(), rows, kF32, ReduceOp::kSum);
    engine.wait(fine);
    EXPECT_EQ(data, std::vector<float>(12, 2));
  }));
  ASSERT_EQ(texts[0].size(), 12U);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0][1].find("root 0 on rank 0, 1 on rank 1"), std::string::npos) << texts[0][1];
}

TEST(Operations, CallersMistakesAreRefusedBeforeAnythingIsSent) {
  expect_all_good(on_ranks(2, patient_options(Schedule::kNegotiated), [](Engine& engine, int) {
    std::vector<float> data(8);
    const Shape eight{8}, scalar, negative{-1}, huge{std::numeric_limits<std::int64_t>::max(), 4};
    const auto invalid = [](const char* part, const auto& act) { expect_error(Errc::kInvalidArgument, part, act); };
    constexpr auto kF32 = DataType::kF32;
    float* const p = data.data();
    invalid("has no rows", [&] { engine.all_gather_async("a", p, scalar, kF32); });
    invalid("has no rows", [&] { engine.reduce_scatter_async("a", p, scalar, kF32, ReduceOp::kSum); });
    invalid("has no rows", [&] { engine.all_to_all_async("a", p, scalar, {}, kF32); });
    invalid("negative extent", [&] { engine.all_gather_async("a", p, negative, kF32); });
    invalid("negative extent", [&] { engine.all_to_all_async("a", p, negative, {}, kF32); });
    invalid("64 bits", [&] { engine.broadcast_async("a", p, huge, kF32, 0); });
    invalid("64 bits", [&] { engine.all_to_all_async("a", p, huge, {}, kF32); });
    invalid("no memory", [&] { engine.all_gather_async("a", nullptr, eight, kF32); });
    invalid("no memory", [&] { engine.all_to_all_async("a", nullptr, eight, {}, kF32); });
    invalid("no memory", [&] { engine.all_reduce_into_async("a", p, nullptr, eight, kF32, ReduceOp::kSum); });
    invalid("overlap", [&] { engine.all_reduce_into_async("a", p, p + 1, Shape{7}, kF32, ReduceOp::kSum); });
    invalid("root 2 is not one of the 2 ranks", [&] { engine.broadcast_async("a", p, eight, kF32, 2); });
    invalid("root -1", [&] { engine.broadcast_async("a", p, eight, kF32, -1); });
    invalid("divided evenly", [&] { engine.all_to_all_async("a", p, Shape{7}, {}, kF32); });
    invalid("3 splits for 2 ranks", [&] { engine.all_to_all_async("a", p, eight, Shape{4, 2, 2}, kF32); });
    invalid("leave 1 of its 8 rows", [&] { engine.all_to_all_async("a", p, eight, Shape{4, 3}, kF32); });
    invalid("[9, -1] do not add up", [&] { engine.all_to_all_async("a", p, eight, Shape{9, -1}, kF32); });
    invalid("has no tensors", [&] { engine.grouped_all_reduce_async("a", {}, kF32, ReduceOp::kSum); });
    invalid("not finite", [&] { engine.all_reduce_async("a", p, eight, kF32, ReduceOp::kSum, {std::nan(""), 1}); });
    invalid("cannot be scaled", [&] {
      engine.all_reduce_async("a", p, eight, DataType::kI32, ReduceOp::kSum, {2, 1});
    });
    invalid("never issued", [&] { static_cast<void>(engine.error_of(77)); });
    invalid("never issued", [&] { static_cast<void>(engine.take_output(77)); });
    const std::array<std::size_t, 1> one_count{8};
    const std::array<std::size_t, 2> too_many{~std::size_t{0} / 4, 1};
    invalid("1 counts for 2 ranks", [&] { engine.all_gather(p, p, one_count, kF32); });
    invalid("beyond 64 bits", [&] { engine.reduce_scatter(p, p, too_many, kF32, ReduceOp::kSum); });
    const Ticket ticket = engine.all_gather_async("a", p, eight, kF32);  // the refused calls did not use up "a"
    EXPECT_EQ(engine.take_output(ticket).bytes.size(), 64U);
    invalid("waited for already", [&] { static_cast<void>(engine.take_output(ticket)); });
  }));
}

TEST(Operations, SmallCollectivesRunAfterEarlierTickets) {
  on_worlds([](Engine& engine, int rank) {
    const auto size = static_cast<std::size_t>(engine.size());
    float early = 1;
    const Ticket ticket = test::submit(engine, "early", early);
    std::vector<std::size_t> counts(size, 2);
    counts.at(0) = 0;
    const std::vector<std::int32_t> mine(counts[static_cast<std::size_t>(rank)], rank);
    std::vector<std::int32_t> all((size - 1) * 2);
    engine.all_gather(all.data(), mine.data(), counts, DataType::kI32);
    EXPECT_TRUE(engine.done(ticket));
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int32_t>(i / 2 + 1));
    std::vector<std::int32_t> share(mine.size());
    engine.reduce_scatter(share.data(), all.data(), counts, DataType::kI32, ReduceOp::kSum);
    for (const std::int32_t value : share) EXPECT_EQ(value, rank * engine.size());
    const std::vector<std::size_t> ones(size, 1);
    std::vector<std::int32_t> sent(size), got(size);
    for (std::size_t to = 0; to < size; ++to) sent[to] = rank * 100 + static_cast<std::int32_t>(to);
    engine.all_to_all(got.data(), ones, sent.data(), ones, DataType::kI32);
    for (std::size_t from = 0; from < size; ++from) EXPECT_EQ(got[from], static_cast<std::int32_t>(from) * 100 + rank);
    engine.wait(ticket);
    EXPECT_EQ(early, static_cast<float>(engine.size()));
  });
}

/// Submits all kinds of operations at once, in a different order on each rank.
TEST(Operations, AllKindsMixInAnyOrder) {
  constexpr std::uint32_t kSeed = 20;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  expect_all_good(on_ranks(4, patient_options(Schedule::kNegotiated), [](Engine& engine, int rank) {
    constexpr std::size_t kTensors = 40;
    for (std::uint32_t round = 0; round < 4; ++round) {
      std::vector<std::vector<float>> data(kTensors, std::vector<float>(8, static_cast<float>(rank)));
      std::vector<Ticket> tickets(kTensors);
      const Shape shape{8};
      for (const std::size_t t : test::shuffled(kTensors, kSeed + round * 4 + static_cast<std::uint32_t>(rank))) {
        const std::string name = "t" + std::to_string(t);
        float* const p = data[t].data();
        switch (t % 5) {
          case 0: tickets[t] = engine.all_reduce_async(name, p, shape, DataType::kF32, ReduceOp::kSum); break;
          case 1: tickets[t] = engine.broadcast_async(name, p, shape, DataType::kF32, 3); break;
          case 2: tickets[t] = engine.all_gather_async(name, p, Shape{rank + 1}, DataType::kF32); break;
          case 3: tickets[t] = engine.reduce_scatter_async(name, p, shape, DataType::kF32, ReduceOp::kSum); break;
          default: tickets[t] = engine.all_to_all_async(name, p, shape, {}, DataType::kF32); break;
        }
      }
      const std::vector<float> exchanged{0, 0, 1, 1, 2, 2, 3, 3};
      const std::vector<float> gathered{0, 1, 1, 2, 2, 2, 3, 3, 3, 3};
      for (std::size_t t = 0; t < kTensors; ++t) {
        const auto result = values_of<float>(engine.take_output(tickets[t]));
        switch (t % 5) {
          case 0: EXPECT_EQ(data[t], std::vector<float>(8, 6)); break;
          case 1: EXPECT_EQ(data[t], std::vector<float>(8, 3)); break;
          case 2: EXPECT_EQ(result, gathered); break;
          case 3: EXPECT_EQ(result, std::vector<float>(2, 6)); break;
          default: EXPECT_EQ(result, exchanged); break;
        }
      }
    }
  }));
}

TEST(Operations, InvalidArgumentsLeaveTheEngineUsable) {
  expect_all_good(on_ranks(3, patient_options(Schedule::kStatic), [](Engine& engine, int /*rank*/) {
    std::array<float, 16> data{};
    const std::vector<std::size_t> two_each(3, 2);
    const std::size_t negative = ~std::size_t{0} - 4;
    constexpr auto kF32 = DataType::kF32;
    float* const p = data.data();
    const auto invalid = [](const char* part, const auto& act) { expect_error(Errc::kInvalidArgument, part, act); };
    invalid("is the count negative?", [&] { engine.all_reduce(p, negative, kF32, ReduceOp::kSum); });
    invalid("all_gather: input (8 bytes) and output (24 bytes) overlap",
            [&] { engine.all_gather(p, p + 1, two_each, kF32); });
    invalid("reduce_scatter: input (24 bytes) and output (8 bytes) overlap",
            [&] { engine.reduce_scatter(p + 1, p, two_each, kF32, ReduceOp::kSum); });
    invalid("all_to_all: input (24 bytes) and output (24 bytes) overlap",
            [&] { engine.all_to_all(p + 1, two_each, p, two_each, kF32); });
    data.fill(1);
    engine.all_reduce(data.data(), data.size(), DataType::kF32, ReduceOp::kSum);
    EXPECT_EQ(data.back(), 3.0F);
  }));
}

}  // namespace
}  // namespace hvd::operations_test
