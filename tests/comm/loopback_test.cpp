// Every algorithm over ranks that are threads, on one node and on pretended ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/comm/communicator.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/loopback_world.h"

namespace hvd::test::loopback_test {
namespace {

using comm::Algorithm;

struct World {
  int size;
  int ranks_per_node;
  Algorithm algorithm;
};

void PrintTo(const World& world, std::ostream* out) {
  *out << world.size << " ranks, " << world.ranks_per_node << " per node, " << comm::name(world.algorithm);
}

class LoopbackWorld : public ::testing::TestWithParam<World> {
 protected:
  void expect_good(const std::function<std::string(comm::Communicator&)>& body) const {
    comm::CommOptions options;
    options.algorithm = GetParam().algorithm;
    const auto results = run_loopback(GetParam().size, options, GetParam().ranks_per_node, body);
    for (std::size_t r = 0; r < results.size(); ++r) EXPECT_EQ(results[r], "") << "rank " << r;
  }
};

TEST_P(LoopbackWorld, AllReduceMatrix) {
  const bool large = GetParam().size == 3;  // not a power of two, and quick enough under ThreadSanitizer
  expect_good([&](comm::Communicator& c) { return check_all_reduce_matrix(c, large); });
}

TEST_P(LoopbackWorld, DataBroadcast) {
  expect_good([](comm::Communicator& c) {
    for (const std::size_t bytes : {0U, 1U, 1000U, 40000U, 700001U}) {
      if (std::string problem = check_data_broadcast(c, bytes); !problem.empty()) return problem;
    }
    return std::string();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Algorithms, LoopbackWorld,
    ::testing::Values(World{1, 0, Algorithm::kAuto}, World{2, 0, Algorithm::kSharedMemory},
                      World{3, 0, Algorithm::kSharedMemory}, World{4, 0, Algorithm::kAuto},
                      World{5, 0, Algorithm::kSharedMemory}, World{8, 0, Algorithm::kSharedMemory},
                      World{2, 0, Algorithm::kRing}, World{3, 0, Algorithm::kRing}, World{4, 0, Algorithm::kRing},
                      World{5, 0, Algorithm::kRing}, World{8, 0, Algorithm::kRing},
                      World{2, 0, Algorithm::kRecursiveDoubling}, World{3, 0, Algorithm::kRecursiveDoubling},
                      World{4, 0, Algorithm::kRecursiveDoubling}, World{5, 0, Algorithm::kRecursiveDoubling},
                      World{8, 0, Algorithm::kRecursiveDoubling}, World{2, 1, Algorithm::kAuto},
                      World{3, 1, Algorithm::kAuto}, World{4, 2, Algorithm::kAuto}, World{5, 2, Algorithm::kAuto},
                      World{5, 2, Algorithm::kHierarchical}, World{5, 3, Algorithm::kHierarchical},
                      World{8, 4, Algorithm::kHierarchical}, World{8, 3, Algorithm::kHierarchical},
                      World{3, 1, Algorithm::kHierarchical}));

class LoopbackControl : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(LoopbackControl, EveryOperation) {
  const auto [size, per_node] = GetParam();
  const auto results = run_loopback(size, {}, per_node, check_control_plane);
  for (std::size_t r = 0; r < results.size(); ++r) EXPECT_EQ(results[r], "") << "rank " << r;
}

INSTANTIATE_TEST_SUITE_P(Worlds, LoopbackControl,
                         ::testing::Values(std::pair{1, 0}, std::pair{2, 0}, std::pair{3, 0}, std::pair{8, 0},
                                           std::pair{2, 1}, std::pair{5, 2}, std::pair{7, 3}, std::pair{9, 1}));

TEST(Loopback, DescriptionTellsWhatRan) {
  const auto describe = [](int size, int per_node, std::size_t count) {
    return run_loopback(size, {}, per_node, [count](comm::Communicator& c) {
      std::vector<float> data(count, 1.0F);
      c.data().all_reduce(data.data(), count, DataType::kF32, ReduceOp::kSum,
                          Deadline::after(std::chrono::seconds(20)));
      return c.data().description();
    })[0];
  };
  EXPECT_EQ(describe(2, 0, 100), "shm");
  EXPECT_EQ(describe(2, 1, 100), "doubling over threads");
  EXPECT_EQ(describe(2, 1, 100000), "ring over threads");
  EXPECT_EQ(describe(4, 2, 100), "hierarchical(shm+doubling over threads)");
  EXPECT_EQ(describe(4, 2, 1000000), "hierarchical(shm+ring over threads)");
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
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    const auto memory = c.data().allocate(4000003, deadline);
    const auto bytes = memory->bytes();
    if (bytes.size() != 4000003) return "size";
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 4096 != 0) return "alignment";
    for (const std::byte b : bytes) {
      if (b != std::byte{0}) return "not zeroed";
    }
    // Different offsets on different ranks are allowed, only slower in theory; the sum must not care.
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
  const auto results = run_loopback(2, {}, 0, [](comm::Communicator& c) -> std::string {
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    const auto first = c.data().allocate(1 << 20, deadline);
    const auto second = c.data().allocate(1 << 20, deadline);
    std::vector<float> plain(100000, 1.0F);
    // Rank 0 uses plain memory, then another region than rank 1.
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
  });
  for (const auto& result : results) EXPECT_EQ(result, "");
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
                            Algorithm::kMpiAllreduce, Algorithm::kRecursiveDoubling}) {
    EXPECT_EQ(comm::parse_algorithm(comm::name(a)), a);
  }
  try {
    comm::parse_algorithm("tree");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("auto, shm, ring, hierarchical, mpi, doubling"), std::string::npos);
  }
}

}  // namespace
}  // namespace hvd::test::loopback_test
