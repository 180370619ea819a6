// Tests every algorithm with ranks as threads, on one node and on pretended nodes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "engine/comm/chunks.h"
#include "engine/comm/communicator.h"
#include "tests/base/errors.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/loopback_world.h"
#include "tests/comm/share_checks.h"

namespace hvd::test::loopback_test {
namespace {

using comm::Algorithm;

struct World {
  int size, ranks_per_node;
  Algorithm algorithm;
  std::size_t segment_bytes = comm::CommOptions{}.segment_bytes;
};

void PrintTo(const World& world, std::ostream* out) {
  *out << world.size << " ranks, " << world.ranks_per_node << " per node, " << comm::name(world.algorithm);
  if (world.segment_bytes != comm::CommOptions{}.segment_bytes) *out << ", segments of " << world.segment_bytes;
}

class LoopbackWorld : public ::testing::TestWithParam<World> {
 protected:
  void expect_good(const std::function<std::string(comm::Communicator&)>& body) const {
    comm::CommOptions options;
    options.algorithm = GetParam().algorithm;
    options.segment_bytes = GetParam().segment_bytes;
    test::expect_good(run_loopback(GetParam().size, options, GetParam().ranks_per_node, body));
  }
};

TEST_P(LoopbackWorld, AllReduceMatrix) {
  // Only three ranks run the large cases: three is not a power of two, and quick enough under ThreadSanitizer.
  const bool large = GetParam().size == 3;
  expect_good([&](comm::Communicator& c) { return check_all_reduce_matrix(c, large); });
}

class LoopbackShares : public LoopbackWorld {};

TEST_P(LoopbackShares, Matrix) { expect_good(check_share_matrix); }

TEST_P(LoopbackWorld, DataBroadcast) {
  expect_good([](comm::Communicator& c) {
    for (const std::size_t bytes : {0U, 1U, 1000U, 40000U, 700001U}) {
      if (std::string problem = check_data_broadcast(c, bytes); !problem.empty()) return problem;
    }
    return std::string();
  });
}

/// Returns every algorithm with every supported world of 1 to 9 ranks: on one node, with one rank per node, and with
/// nodes of equal and unequal sizes.
std::vector<World> worlds() {
  std::vector<World> result;
  for (int size = 1; size <= 9; ++size) {
    result.push_back({size, 0, Algorithm::kSharedMemory});
    for (const Algorithm flat : {Algorithm::kRing, Algorithm::kRecursiveDoubling, Algorithm::kRabenseifner}) {
      result.push_back({size, 0, flat});
    }
    if (size > 1) result.push_back({size, 1, Algorithm::kAuto});
    if (size > 2) result.push_back({size, 2, Algorithm::kHierarchical});
    if (size > 4) result.push_back({size, 3, Algorithm::kAuto});
  }
  result.push_back({4, 0, Algorithm::kAuto});
  result.push_back({3, 1, Algorithm::kHierarchical});
  // The smallest segment size gives many blocks and many rounds. The default segment size gives few blocks and rounds.
  for (const Algorithm algorithm : {Algorithm::kSharedMemory, Algorithm::kRing}) {
    for (const int size : {2, 3, 5}) result.push_back({size, 0, algorithm, 1024});
  }
  return result;
}

/// Returns the worlds for operations on shares. Leaves out rabenseifner, because these operations then run
/// the algorithm of doubling.
std::vector<World> worlds_of_shares() {
  std::vector<World> result = worlds();
  std::erase_if(result, [](const World& world) { return world.algorithm == Algorithm::kRabenseifner; });
  return result;
}

INSTANTIATE_TEST_SUITE_P(Algorithms, LoopbackWorld, ::testing::ValuesIn(worlds()));
INSTANTIATE_TEST_SUITE_P(Algorithms, LoopbackShares, ::testing::ValuesIn(worlds_of_shares()));

std::vector<std::size_t> near_equal(std::size_t total, int parts) {
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; r < static_cast<std::size_t>(parts); ++r) {
    counts.push_back(comm::share_of(total, static_cast<std::size_t>(parts), r, 64).count);
  }
  return counts;
}

TEST(LoopbackBits, ReduceScatterOnOneNodeIsAPartOfTheAllReduce) {
  for (const int size : {2, 3, 4, 7}) {
    for (const std::size_t total : {100U, 5000U, 100003U}) {
      auto uneven = near_equal(total, size);
      uneven.front() += std::exchange(uneven.back(), 0);
      for (const auto& counts : {near_equal(total, size), uneven}) {
        for (const DataType dtype : {DataType::kF32, DataType::kBF16}) {
          expect_good(run_loopback(size, {}, 0, [&](comm::Communicator& c) {
            return check_same_bits_as_all_reduce(c, {counts, dtype, ReduceOp::kAverage, Memory::kPlain, false});
          }));
        }
      }
    }
  }
}

TEST(LoopbackBits, ReduceScatterInARingIsAPartOfTheAllReduceWithEqualCuts) {
  comm::CommOptions options;
  options.algorithm = Algorithm::kRing;
  options.segment_bytes = 1024;
  for (const int size : {2, 3, 4, 7}) {
    for (const std::size_t total : {100U, 5000U, 100003U}) {
      for (const DataType dtype : {DataType::kF32, DataType::kBF16}) {
        expect_good(run_loopback(size, options, 0, [&](comm::Communicator& c) {
          return check_same_bits_as_all_reduce(
              c, {near_equal(total, size), dtype, ReduceOp::kAverage, Memory::kPlain, false});
        }));
      }
    }
  }
}

TEST(LoopbackBits, ReduceScatterByHalvingIsAPartOfRabenseifners) {
  comm::CommOptions options;
  options.algorithm = Algorithm::kRabenseifner;
  for (const int size : {2, 4, 8}) {
    auto uneven = near_equal(5000, size);
    uneven.front() += std::exchange(uneven.back(), 0);
    expect_good(run_loopback(size, options, 0, [&](comm::Communicator& c) {
      return check_same_bits_as_all_reduce(c, {uneven, DataType::kBF16, ReduceOp::kSum, Memory::kPlain, false});
    }));
  }
}

TEST(LoopbackBits, AllReduceOutOfPlaceIsTheOneInPlace) {
  for (const std::size_t count : {100U, 50003U}) {
    expect_good(run_loopback(3, {}, 0, [&](comm::Communicator& c) -> std::string {
      std::vector<float> data(count);
      for (std::size_t i = 0; i < count; ++i) {
        data[i] = 1.0F / static_cast<float>(i + 3 * static_cast<std::size_t>(c.topology().rank) + 1);
      }
      std::vector<float> into(count);
      const Deadline deadline = soon();
      c.data().all_reduce_into(into.data(), data.data(), count, DataType::kF32, ReduceOp::kAverage, deadline);
      c.data().all_reduce(data.data(), count, DataType::kF32, ReduceOp::kAverage, deadline);
      return into == data ? "" : "other bits";
    }));
  }
}

TEST(LoopbackThresholds, DecideBetweenNodes) {
  comm::CommOptions options;
  options.thresholds = {.doubling_bytes = 400, .rabenseifner_bytes = 4000, .direct_bytes = 400};
  const auto results = run_loopback(3, options, 1, [](comm::Communicator& c) {
    for (const std::size_t count : {100U, 1000U, 10000U}) {
      const std::string problem = check_all_reduce(c, {count, DataType::kF32, ReduceOp::kSum, Memory::kPlain});
      if (!problem.empty()) return problem;
    }
    return c.data().description();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result, "doubling over threads + rabenseifner over threads + ring over threads");
  }
}

class LoopbackControl : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(LoopbackControl, EveryOperation) {
  const auto [size, per_node] = GetParam();
  expect_good(run_loopback(size, {}, per_node, check_control_plane));
}

INSTANTIATE_TEST_SUITE_P(Worlds, LoopbackControl,
                         ::testing::Values(std::pair{1, 0}, std::pair{2, 0}, std::pair{3, 0}, std::pair{8, 0},
                                           std::pair{2, 1}, std::pair{5, 2}, std::pair{7, 3}, std::pair{9, 1}));

TEST(Loopback, DescriptionTellsWhatRan) {
  EXPECT_EQ(description_after(100, 2, 0), "shm");
  EXPECT_EQ(description_after(100, 2, 1), "doubling over threads");
  EXPECT_EQ(description_after(100000, 2, 1), "ring over threads");
  EXPECT_EQ(description_after(100, 4, 2), "hierarchical(shm+doubling over threads)");
  EXPECT_EQ(description_after(1000000, 4, 2), "hierarchical(shm+ring over threads)");
}

TEST(Loopback, TopologyOfPretendedNodes) {
  const auto world = comm::make_loopback(5, {}, 2);
  ASSERT_EQ(world.size(), 5U);
  const comm::Topology& t = world[3]->topology();
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.size, 5);
  EXPECT_EQ(t.node, 1);
  EXPECT_EQ(t.nodes, 3);
  EXPECT_EQ(t.local_rank, 1);
  EXPECT_EQ(t.local_size, 2);
  EXPECT_EQ(t.hosts, (std::vector<std::string>{"node0", "node0", "node1", "node1", "node2"}));
  EXPECT_EQ(world[4]->topology().local_size, 1);
}

TEST(Loopback, RegisteredMemoryIsZeroedAlignedAndReducedAtAnOffset) {
  const auto results = run_loopback(3, {}, 0, [](comm::Communicator& c) -> std::string {
    const Deadline deadline = soon();
    const auto memory = c.data().allocate(4000003, deadline);
    const auto bytes = memory->bytes();
    if (bytes.size() != 4000003) return "size";
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 4096 != 0) return "alignment";
    for (const std::byte b : bytes) {
      if (b != std::byte{0}) return "not zeroed";
    }
    // Ranks may use different offsets. The operation may then be slower than with equal offsets, but its sum must be
    // right.
    const std::size_t offset = 64 * static_cast<std::size_t>(c.topology().rank);
    auto* values = reinterpret_cast<float*>(bytes.data() + offset);
    for (std::size_t i = 0; i < 100000; ++i) values[i] = static_cast<float>(c.topology().rank + 1);
    c.data().all_reduce(values, 100000, DataType::kF32, ReduceOp::kSum, deadline);
    for (std::size_t i = 0; i < 100000; ++i) {
      if (values[i] != 6.0F) return "sum";
    }
    return "";
  });
  for (const auto& result : results) EXPECT_EQ(result, "");
}

TEST(Loopback, MixedRegisteredAndPlainBuffersAgree) {
  expect_good(run_loopback(2, {}, 0, [](comm::Communicator& c) -> std::string {
    const Deadline deadline = soon();
    const auto first = c.data().allocate(1 << 20, deadline);
    const auto second = c.data().allocate(1 << 20, deadline);
    std::vector<float> plain(100000, 1.0F);
    // In round 0, rank 0 uses plain memory; in round 1, ranks 0 and 1 use different registered regions.
    for (int round = 0; round < 2; ++round) {
      float* registered = reinterpret_cast<float*>((c.topology().rank == 0 ? first : second)->bytes().data());
      float* data = round == 0 && c.topology().rank == 0 ? plain.data() : registered;
      std::fill_n(data, 100000, 1.0F);
      c.data().all_reduce(data, 100000, DataType::kF32, ReduceOp::kSum, deadline);
      for (std::size_t i = 0; i < 100000; ++i) {
        if (data[i] != 2.0F) return "round " + std::to_string(round);
      }
    }
    return "";
  }));
}

/// A call that the last rank makes differently, and the error that all ranks must report.
struct Disagreement {
  const char* text;
  std::function<void(comm::DataPlane& data, bool last, Deadline deadline)> call;
};

std::vector<Disagreement> disagreements() {
  static const std::vector<float> in(200000);
  const auto out = [] {
    thread_local std::vector<float> mine;
    mine.assign(200000, 0.0F);
    return mine.data();
  };
  const auto f32 = DataType::kF32;
  const auto sum = ReduceOp::kSum;
  return {
      {"all_reduce 1: rank 0 (host node0) has 100 fp32 (sum), rank 2 (host node0) has 101 fp32 (sum)",
       [=](auto& data, bool last, auto deadline) { data.all_reduce(out(), last ? 101 : 100, f32, sum, deadline); }},
      {"has 100 fp32 (sum), rank 2 (host node0) has 100000 fp32 (sum)",  // the two counts take different algorithms
       [=](auto& data, bool last, auto deadline) { data.all_reduce(out(), last ? 100000 : 100, f32, sum, deadline); }},
      {"has 50000 fp32 (sum), rank 2 (host node0) has 50000 fp32 (product)",
       [=](auto& data, bool last, auto deadline) {
         data.all_reduce(out(), 50000, f32, last ? ReduceOp::kProduct : sum, deadline);
       }},
      {"all_reduce_into 1: rank 0 (host node0) has 50000 fp32 (sum), rank 2 (host node0) has 50000 int32 (sum)",
       [=](auto& data, bool last, auto deadline) {
         data.all_reduce_into(out(), in.data(), 50000, last ? DataType::kI32 : f32, sum, deadline);
       }},
      {"all_reduce_into 1: rank 0 (host node0) has 50000 fp32 (sum), rank 2 (host node0) has 5 fp32 (sum)",
       [=](auto& data, bool last, auto deadline) {
         data.all_reduce_into(out(), in.data(), last ? 5 : 50000, f32, sum, deadline);
       }},
      {"reduce_scatter 1: rank 0 (host node0) gives rank 1 (host node0) a share of 4 elements, rank 2 (host node0) one "
       "of 5",
       [=](auto& data, bool last, auto deadline) {
         const std::vector<std::size_t> counts{3, last ? 5U : 4U, last ? 4U : 5U};
         data.reduce_scatter(out(), in.data(), counts, f32, sum, deadline);
       }},
      {"all_gather 1: rank 0 (host node0) has 30012 fp32, rank 2 (host node0) has 30011 fp32",
       [=](auto& data, bool last, auto deadline) {
         const std::vector<std::size_t> counts{3, 30000, last ? 8U : 9U};
         data.all_gather(out(), in.data(), counts, f32, deadline);
       }},
      {"all_to_all 1: rank 0 (host node0) sends 2 elements to rank 2 (host node0), which expects 7",
       [=](auto& data, bool last, auto deadline) {
         const std::vector<std::size_t> sent{1, 1, 2};
         const std::vector<std::size_t> received =
             last ? std::vector<std::size_t>{7, 2, 2} : std::vector<std::size_t>{1, 1, 1};
         data.all_to_all(out(), received, in.data(), sent, f32, deadline);
       }},
      {"broadcast 1: rank 0 (host node0) names rank 1 as the root, rank 2 (host node0) names rank 0",
       [=](auto& data, bool last, auto deadline) { data.broadcast(out(), 400000, last ? 0 : 1, deadline); }},
      {"broadcast 1: rank 0 (host node0) has 400000 uint8, rank 2 (host node0) has 4000 uint8",
       [=](auto& data, bool last, auto deadline) { data.broadcast(out(), last ? 4000 : 400000, 1, deadline); }},
      {"broadcast 1: rank 0 (host node0) makes another call, rank 2 (host node0) has 8 bytes from rank 1",
       [=](auto& data, bool last, auto deadline) { data.broadcast(out(), last ? 8 : 400000, 1, deadline); }},
  };
}

TEST(LoopbackDisagreement, IsOneTextOnAllRanksAndTheNextOperationWorks) {
  for (const Disagreement& disagreement : disagreements()) {
    const auto results = run_loopback(3, {}, 0, [&](comm::Communicator& c) -> std::string {
      const std::string text = error_of([&] { disagreement.call(c.data(), c.topology().rank == 2, soon()); });
      // After the faulty call all ranks must still be in step, both for data in slots and for data in blocks.
      for (const std::size_t count : {100U, 50000U}) {
        const std::string after = check_all_reduce(c, {count, DataType::kF32, ReduceOp::kSum, Memory::kPlain});
        if (!after.empty()) return "after '" + text + "': " + after;
      }
      return text;
    });
    EXPECT_NE(results[0].find(disagreement.text), std::string::npos) << results[0];
    EXPECT_EQ(results[0].rfind("mismatch: ", 0), 0U) << results[0];
    EXPECT_EQ(results[1], results[0]);
    EXPECT_EQ(results[2], results[0]);
  }
}

TEST(LoopbackDisagreement, ABroadcastRootIsToldOfAMismatchOnAnotherNode) {
  const auto results = run_loopback(4, {}, 2, [](comm::Communicator& c) -> std::string {
    std::vector<float> data(100);
    c.data().broadcast(data.data(), 400, c.topology().rank % 2, soon());
    return "";
  });
  for (const auto& result : results) EXPECT_NE(result.find("as the root"), std::string::npos) << result;
}

TEST(Loopback, RefusesBuffersThatOverlapAndCountsThatNoMemoryHolds) {
  for (const int per_node : {0, 1}) {
    const auto results = run_loopback(2, {}, per_node, [](comm::Communicator& c) -> std::string {
      const Deadline deadline = soon();
      std::vector<float> data(300);
      const std::vector<std::size_t> counts{100, 100};
      comm::DataPlane& plane = c.data();
      const auto refused = [](std::string_view part, const auto& call) {
        expect_error(Errc::kInvalidArgument, part, call);
      };
      const auto sum = ReduceOp::kSum;
      const auto f32 = DataType::kF32;
      // `beside` begins one element after the beginning of the rank's own share.
      float* const beside = data.data() + 100 * c.topology().rank + 1;
      refused("overlap", [&] { plane.reduce_scatter(beside, data.data(), counts, f32, sum, deadline); });
      refused("overlap", [&] { plane.all_gather(data.data(), beside, counts, f32, deadline); });
      refused("overlap", [&] { plane.all_to_all(data.data(), counts, beside, counts, f32, deadline); });
      refused("overlap", [&] { plane.all_reduce_into(data.data(), beside, 200, f32, sum, deadline); });
      const auto negative = static_cast<std::size_t>(-1);
      const std::vector<std::size_t> huge{negative, 0}, one_count{200};
      refused("negative?", [&] { plane.all_reduce(data.data(), negative, f32, sum, deadline); });
      refused("negative?", [&] { plane.all_gather(data.data(), data.data(), huge, f32, deadline); });
      refused("one count per rank", [&] { plane.all_gather(data.data(), data.data(), one_count, f32, deadline); });
      return check_all_reduce(c, {1000, f32, sum, Memory::kPlain});
    });
    for (const auto& result : results) EXPECT_EQ(result, "");
  }
}

TEST(Loopback, RefusesWhatCannotRun) {
  EXPECT_THROW(comm::make_loopback(0), Error);
  comm::CommOptions options;
  options.algorithm = Algorithm::kSharedMemory;
  EXPECT_THROW(comm::make_loopback(4, options, 2), Error);
  options.algorithm = Algorithm::kMpiAllreduce;
  EXPECT_THROW(comm::make_loopback(2, options), Error);
}

TEST(Solo, IsTheIdentity) {
  const auto solo = comm::make_solo();
  EXPECT_EQ(solo->topology().size, 1);
  EXPECT_EQ(check_control_plane(*solo), "");
  EXPECT_EQ(check_all_reduce_matrix(*solo, false), "");
  EXPECT_EQ(check_data_broadcast(*solo, 100), "");
}

TEST(AlgorithmNames, RoundTripAndListTheChoices) {
  for (const Algorithm a : {Algorithm::kAuto, Algorithm::kSharedMemory, Algorithm::kRing, Algorithm::kHierarchical,
                            Algorithm::kMpiAllreduce, Algorithm::kRecursiveDoubling, Algorithm::kRabenseifner}) {
    EXPECT_EQ(comm::parse_algorithm(comm::name(a)), a);
  }
  expect_error(Errc::kInvalidArgument, "auto, shm, ring, hierarchical, mpi, doubling, rabenseifner",
               [] { comm::parse_algorithm("tree"); });
}

}  // namespace
}  // namespace hvd::test::loopback_test
