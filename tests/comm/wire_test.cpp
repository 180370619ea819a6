// Tests sums that are sent between nodes in 16 bits: errors stay below the bound, all ranks get the same bits, and
// values that are not sent are not rounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/float16.h"
#include "engine/base/philox.h"
#include "engine/comm/reduce.h"
#include "tests/comm/loopback_world.h"

namespace hvd::test::wire_test {
namespace {

using comm::Algorithm;

constexpr std::array kHalves{DataType::kF16, DataType::kBF16};

float rounded(float value, DataType half) {
  return half == DataType::kF16 ? fp16_to_float(float_to_fp16(value)) : bf16_to_float(float_to_bf16(value));
}

/// Returns values from -1 to 1, some of them subnormal in fp16.
float value_of(int rank, std::size_t index) {
  const Philox chance(7, static_cast<std::uint64_t>(rank));
  const float value = 2.0F * chance.uniform(index) - 1.0F;
  return index % 17 == 0 ? value * 0x1p-16F : value;
}

struct World {
  int size, ranks_per_node;
  Algorithm algorithm;
  std::size_t count;
};

void PrintTo(const World& world, std::ostream* out) {
  *out << world.size << " ranks, " << world.ranks_per_node << " per node, " << comm::name(world.algorithm) << ", "
       << world.count << " elements";
}

using Values = std::vector<std::vector<float>>;  // [rank]

template <class Fill>
Values reduce(const World& world, DataType wire, ReduceOp op, Fill&& fill) {
  comm::CommOptions options;
  options.algorithm = world.algorithm;
  options.wire = wire;
  Values values(static_cast<std::size_t>(world.size));
  const auto problems = run_loopback(world.size, options, world.ranks_per_node, [&](comm::Communicator& c) {
    const int rank = c.topology().rank;
    std::vector<float>& mine = values[static_cast<std::size_t>(rank)];
    mine.resize(world.count);
    for (std::size_t i = 0; i < world.count; ++i) mine[i] = fill(rank, i);
    c.data().all_reduce(mine.data(), mine.size(), DataType::kF32, op, Deadline::after(std::chrono::seconds(20)));
    return std::string();
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  return values;
}

void expect_equal_bits(const std::vector<float>& first, const std::vector<float>& second, const char* what) {
  ASSERT_EQ(first.size(), second.size());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0) << what;
}

class WireBound : public ::testing::TestWithParam<World> {};

// From docs/algorithms.md, Arithmetic: a ring of m members rounds each element m times. Doubling rounds each element
// once per round and once before the first round. Each rounding is off by at most u times the value, or by 2^-25 where
// fp16 is subnormal. The additions in fp32 have roundings of their own.
TEST_P(WireBound, HoldsAndAllRanksHaveTheSameBits) {
  const World& world = GetParam();
  const bool whole_sums =
      world.algorithm == Algorithm::kRecursiveDoubling || world.algorithm == Algorithm::kRabenseifner;
  const bool flat = world.algorithm == Algorithm::kRing || whole_sums;
  const int members = flat ? world.size : (world.size + world.ranks_per_node - 1) / world.ranks_per_node;
  const auto places = static_cast<unsigned>(members);
  const int rounds = std::bit_width(std::bit_ceil(places));  // roundings: one per round, and one before the first round
  const double on_the_way = world.algorithm == Algorithm::kRing ? members
                            : whole_sums                        ? rounds
                                                                : std::max(members, rounds);
  for (const DataType half : kHalves) {
    const double u = half == DataType::kF16 ? 0x1p-11 : 0x1p-8;
    const double relative = std::pow(1 + u, on_the_way) * std::pow(1 + 0x1p-24, world.size + 2) - 1;
    const double absolute = half == DataType::kF16 ? 2 * members * 0x1p-25 : 0;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      const Values values = reduce(world, half, op, value_of);
      const double scale = op == ReduceOp::kAverage ? 1.0 / world.size : 1.0;
      for (const auto& rank : values) expect_equal_bits(rank, values[0], "against rank 0");
      for (std::size_t i = 0; i < world.count; ++i) {
        double sum = 0, magnitude = 0;
        for (int r = 0; r < world.size; ++r) {
          const auto value = static_cast<double>(value_of(r, i));
          sum += value;
          magnitude += std::abs(value);
        }
        const auto got = static_cast<double>(values[0][i]);
        ASSERT_LE(std::abs(got - sum * scale), relative * magnitude * scale + absolute)
            << name(half) << " " << name(op) << " element " << i;
        if (op == ReduceOp::kSum) {
          ASSERT_EQ(values[0][i], rounded(values[0][i], half)) << "did not travel in 16 bits";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, WireBound,
                         ::testing::Values(World{2, 1, Algorithm::kRing, 1}, World{2, 1, Algorithm::kRing, 100000},
                                           World{3, 1, Algorithm::kRing, 70001}, World{8, 1, Algorithm::kRing, 50000},
                                           World{5, 1, Algorithm::kRabenseifner, 3000},
                                           World{8, 2, Algorithm::kRing, 50000},
                                           World{2, 1, Algorithm::kRecursiveDoubling, 1000},
                                           World{3, 1, Algorithm::kRecursiveDoubling, 1000},
                                           World{4, 1, Algorithm::kRecursiveDoubling, 1000},
                                           World{7, 1, Algorithm::kRecursiveDoubling, 1000},
                                           World{8, 1, Algorithm::kRecursiveDoubling, 20000},
                                           World{4, 1, Algorithm::kAuto, 1000}, World{4, 2, Algorithm::kAuto, 1000},
                                           World{5, 2, Algorithm::kAuto, 100000}, World{8, 3, Algorithm::kAuto, 1000},
                                           World{8, 3, Algorithm::kAuto, 60001},
                                           World{8, 4, Algorithm::kHierarchical, 100000}));

// In fp16, 1 + 2^-11 - 2^-20 is rounded to 1, but an addend that is not sent is not rounded before it is added.
TEST(Wire, ARingRoundsWhatTravelsAndAddsInFp32) {
  const float first = 1.0F + 0x1p-10F, second = 1.0F + 0x1p-11F - 0x1p-20F;
  const Values values = reduce({2, 1, Algorithm::kRing, 128}, DataType::kF16, ReduceOp::kSum,
                               [&](int rank, std::size_t) { return rank == 0 ? first : second; });
  for (const auto& rank : values) {
    EXPECT_EQ(rank[0], 2.0F + 0x1p-9F) << "piece 0: rank 0's value, exact in fp16, travels to rank 1";
    EXPECT_EQ(rank[127], 2.0F) << "piece 1: rank 1's value travels rounded; the tie goes to even";
  }
}

TEST(Wire, NothingIsRoundedOnOneNode) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    const World world{3, 0, algorithm, 50000};
    for (const DataType half : kHalves) {
      const Values wired = reduce(world, half, ReduceOp::kSum, value_of);
      const Values plain = reduce(world, DataType::kF32, ReduceOp::kSum, value_of);
      for (std::size_t r = 0; r < 3; ++r) expect_equal_bits(wired[r], plain[r], "against the uncompressed sum");
    }
  }
}

TEST(Wire, OnlySumsAndAveragesOfFp32AreRounded) {
  const World world{4, 1, Algorithm::kRing, 5000};
  const Values greatest = reduce(world, DataType::kBF16, ReduceOp::kMax, value_of);
  const Values plain = reduce(world, DataType::kF32, ReduceOp::kMax, value_of);
  expect_equal_bits(greatest[0], plain[0], "max");
  comm::CommOptions options;
  options.wire = DataType::kBF16;
  const auto sums = run_loopback(2, options, 1, [](comm::Communicator& c) {
    double third = 1.0 / 3;
    c.data().all_reduce(&third, 1, DataType::kF64, ReduceOp::kSum, Deadline::after(std::chrono::seconds(20)));
    return std::string(third == 2.0 / 3 ? "" : "rounded");
  });
  EXPECT_EQ(sums, (std::vector<std::string>{"", ""}));
}

TEST(Wire, AnOverflowOfFp16IsInfinityOnAllRanks) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    const World world{3, 1, algorithm, 500};
    const auto big = [](int, std::size_t i) { return i % 2 == 0 ? 40000.0F : -40000.0F; };
    for (const auto& rank : reduce(world, DataType::kF16, ReduceOp::kSum, big)) {
      EXPECT_EQ(rank[0], std::numeric_limits<float>::infinity());
      EXPECT_EQ(rank[499], -std::numeric_limits<float>::infinity());
    }
    for (const auto& rank : reduce(world, DataType::kBF16, ReduceOp::kSum, big))
      EXPECT_NEAR(rank[0], 120000, 120000 / 64);
  }
}

TEST(Wire, TheDescriptionNamesTheType) {
  const auto describe = [](int size, int per_node, std::size_t count, DataType wire) {
    comm::CommOptions options;
    options.wire = wire;
    return description_after(count, size, per_node, options);
  };
  EXPECT_EQ(describe(2, 1, 100000, DataType::kF16), "ring over threads, fp16 on the wire");
  EXPECT_EQ(describe(4, 2, 100, DataType::kBF16), "hierarchical(shm+doubling over threads, bf16 on the wire)");
  EXPECT_EQ(describe(4, 2, 1000000, DataType::kBF16), "hierarchical(shm+ring over threads, bf16 on the wire)");
  EXPECT_EQ(describe(2, 0, 100000, DataType::kBF16), "shm");
}

}  // namespace
}  // namespace hvd::test::wire_test
