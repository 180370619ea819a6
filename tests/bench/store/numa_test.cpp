// Tests NUMA nodes: machines that hwloc invents, affinity masks that cross nodes, and the facts and cautions of a run.
#include "bench/store/numa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bench/cli/doctor/doctor.h"
#include "bench/store/host_facts.h"
#include "bench/store/provenance.h"
#include "bench/world/numa_facts.h"

namespace hvd::bench::numa_test {
namespace {

using Ints = std::vector<int>;

/// Returns the layout of a machine that hwloc invents from `description`. In a build without hwloc the layout has no
/// nodes.
NumaLayout machine(const std::string& description) {
  NumaLayout layout = NumaTopology::synthetic(description).layout();
  EXPECT_FALSE(layout.this_machine) << "hwloc vouches for no description";
  layout.this_machine = true;
  return layout;
}

/// Returns the processor numbers from `first` to `last`, both included.
Ints cpus(int first, int last) {
  Ints numbers(static_cast<std::size_t>(last - first + 1));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

/// A layout of two nodes with four processors each, made without hwloc.
NumaLayout two_nodes() {
  NumaLayout layout;
  layout.nodes = {{.number = 0, .cpus = cpus(0, 3), .cores = 4, .memory_bytes = std::int64_t{1} << 30},
                  {.number = 1, .cpus = cpus(4, 7), .cores = 4, .memory_bytes = std::int64_t{1} << 30}};
  layout.source = "hwloc API 2.8";
  layout.this_machine = true;
  return layout;
}

class Hwloc : public testing::Test {
 protected:
  void SetUp() override {
    if (machine("numa:1 pu:1").nodes.empty()) GTEST_SKIP() << "this build has no hwloc";
  }
};

TEST_F(Hwloc, DescribesMachinesOfOneToEightNodes) {
  for (const int count : {1, 2, 4, 8}) {
    const NumaLayout layout = machine("numa:" + std::to_string(count) + " core:4 pu:2");
    ASSERT_EQ(layout.nodes.size(), static_cast<std::size_t>(count));
    for (int n = 0; n < count; ++n) {
      const NumaNode& node = layout.nodes[static_cast<std::size_t>(n)];
      EXPECT_EQ(node.number, n);
      EXPECT_EQ(node.cpus, cpus(8 * n, 8 * n + 7));
      EXPECT_EQ(node.cores, 4);
      EXPECT_GT(node.memory_bytes, 0);
    }
    const Ints all = cpus(0, 8 * count - 1);
    EXPECT_EQ(layout.nodes_of(all), cpus(0, count - 1));
    EXPECT_EQ(layout.crosses(all), count > 1);
    EXPECT_EQ(layout.nodes_of(cpus(8 * count - 3, 8 * count - 1)), Ints{count - 1});
    EXPECT_FALSE(layout.crosses(cpus(8 * count - 3, 8 * count - 1)));
  }
}

TEST_F(Hwloc, DescribesSocketsThatAreDividedIntoNodes) {
  const NumaLayout layout = machine("pack:2 numa:4 core:4 pu:1");
  ASSERT_EQ(layout.nodes.size(), 8U);
  EXPECT_EQ(layout.nodes[5].cpus, cpus(20, 23));
  EXPECT_TRUE(layout.crosses(cpus(0, 15))) << "a rank on a whole socket";
  EXPECT_EQ(layout.nodes_of(cpus(0, 15)), cpus(0, 3));
  EXPECT_FALSE(layout.crosses(cpus(4, 7)));
  EXPECT_TRUE(layout.crosses({7, 8}));
}

TEST_F(Hwloc, DescribesNodesThatShareTheirProcessors) {
  // Each of two sockets has two memory nodes, for example HBM and DRAM.
  const NumaLayout layout = machine("pack:2 [numa] [numa] core:4 pu:1");
  ASSERT_EQ(layout.nodes.size(), 4U);
  EXPECT_EQ(layout.nodes_of(cpus(0, 3)).size(), 2U);
  EXPECT_FALSE(layout.crosses(cpus(0, 3)));
  EXPECT_TRUE(layout.crosses(cpus(3, 4)));
}

TEST_F(Hwloc, ADescriptionThatItCannotReadLeavesTheNodesUnknown) {
  const NumaLayout layout = machine("numa:two");
  EXPECT_TRUE(layout.nodes.empty());
  EXPECT_NE(layout.source.find("cannot be understood: numa:two"), std::string::npos) << layout.source;
  EXPECT_FALSE(layout.known());
}

TEST_F(Hwloc, FindsTheProcessorsOfThisProcess) {
  const NumaTopology here = NumaTopology::of_machine({});
  const NumaLayout& layout = here.layout();
  ASSERT_FALSE(layout.nodes.empty()) << layout.source;
  if (!layout.this_machine) GTEST_SKIP() << layout.source;
  EXPECT_FALSE(layout.nodes_of(affinity()).empty());
  std::size_t processors = 0;
  for (const NumaNode& node : layout.nodes) processors += node.cpus.size();
  EXPECT_GE(processors, affinity().size());
}

TEST_F(Hwloc, TellsWhereTouchedMemoryLies) {
  const NumaTopology here = NumaTopology::of_machine({});
  const std::vector<std::byte> touched(1 << 20, std::byte{1});
  const Ints nodes = here.nodes_of_memory(touched);
  if (nodes.empty()) GTEST_SKIP() << "the kernel does not tell (move_pages), or hwloc describes another machine";
  for (const int number : nodes) {
    const auto& all = here.layout().nodes;
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const NumaNode& node) { return node.number == number; }));
  }
  EXPECT_TRUE(here.nodes_of_memory({}).empty());
  EXPECT_TRUE(NumaTopology::synthetic("numa:2 pu:1").nodes_of_memory(touched).empty()) << "it is not this machine's";
}

TEST_F(Hwloc, SaysThatTheEnvironmentRedirectsIt) {
  const NumaLayout layout =
      NumaTopology::of_machine({{"HWLOC_SYNTHETIC", "x"}, {"HWLOC_XMLFILE", "/x"}, {"HWLOC_OTHER", "1"}}).layout();
  EXPECT_NE(layout.source.find(" (set: HWLOC_XMLFILE, HWLOC_SYNTHETIC)"), std::string::npos) << layout.source;
}

TEST(NumaLayout, UnknownProcessorsArePassedOver) {
  EXPECT_FALSE(two_nodes().crosses({0, 1, 99}));
  EXPECT_TRUE(two_nodes().crosses({0, 4, 99}));
  EXPECT_TRUE(two_nodes().nodes_of({99}).empty());
  EXPECT_FALSE(two_nodes().crosses({99}));
}

TEST(NumaLayout, TravelsAsText) {
  const NumaReport report{cpus(2, 5), two_nodes()};
  EXPECT_EQ(to_text(report), "cpus=2-5\nsource=hwloc API 2.8\nthis_machine=yes\nnode.0=0-3\nnode.1=4-7\n");
  const NumaReport back = parse_numa_report(to_text(report));
  EXPECT_EQ(back.cpus, report.cpus);
  EXPECT_EQ(to_text(back), to_text(report));
  EXPECT_EQ(to_text(NumaReport{{1}, {}}), "cpus=1\n");
  const NumaReport damaged = parse_numa_report("cpus=1-\nnode.x=0\nnode.=1\nnode.3=9-1\nelse\n");
  EXPECT_TRUE(damaged.cpus.empty());
  ASSERT_EQ(damaged.layout.nodes.size(), 1U);
  EXPECT_TRUE(damaged.layout.nodes[0].cpus.empty());
  EXPECT_FALSE(damaged.layout.known());
}

/// The reports of four ranks on two hosts with two NUMA nodes each. Only a host's first rank reports the host's nodes.
std::vector<NumaReport> four_ranks() {
  return {{cpus(0, 3), two_nodes()}, {cpus(4, 7), {}}, {cpus(0, 3), two_nodes()}, {cpus(4, 7), {}}};
}
const std::vector<std::string> kTwoHosts{"n1", "n1", "n2", "n2"};

TEST(NumaFacts, OfBoundRanks) {
  const NumaFacts facts = judge_numa(four_ranks(), kTwoHosts, {});
  EXPECT_EQ(facts.provenance.at("numa.of_rank").value, "node 0: ranks 0,2; node 1: ranks 1,3");
  EXPECT_EQ(facts.provenance.at("numa.topology").value, "hwloc API 2.8");
  EXPECT_TRUE(caution_lines(facts.provenance).empty());
  EXPECT_TRUE(facts.notes.empty());
}

TEST(NumaFacts, AreNotPartOfTheFingerprint) {
  RunRecord old;
  RunRecord now;
  now.provenance = judge_numa(four_ranks(), kTwoHosts, {}).provenance;
  EXPECT_EQ(fingerprint(old), fingerprint(now)) << "older records have none of these facts";
}

TEST(NumaFacts, ACautionNamesTheFirstRankThatIsNotBound) {
  std::vector<NumaReport> ranks = four_ranks();
  ranks[2].cpus = ranks[3].cpus = cpus(0, 7);
  const NumaFacts facts = judge_numa(ranks, kTwoHosts, {});
  EXPECT_EQ(facts.provenance.at("numa.of_rank").value, "node 0: rank 0; node 1: rank 1; nodes 0-1: ranks 2-3");
  EXPECT_EQ(caution_lines(facts.provenance),
            (std::vector<std::string>{
                "caution: rank 2 and 1 more may run on NUMA nodes 0-1 of host n2: memory stays on the node whose "
                "processor touches it first, and processors of other nodes read it more slowly; bind each rank to one "
                "node: srun --cpu-bind=ldoms, mpirun --map-by numa --bind-to numa, or jsrun -c CORES -b packed:CORES "
                "-d packed"}));
  const NumaFacts threads = judge_numa(ranks, kTwoHosts, {.threads = true});
  EXPECT_NE(caution_lines(threads.provenance)[0].find("start the ranks as processes, and bind"), std::string::npos);
  const NumaFacts gpus = judge_numa(ranks, kTwoHosts, {.on_gpus = true});
  EXPECT_TRUE(caution_lines(gpus.provenance).empty());
  EXPECT_EQ(gpus.provenance.at("numa.of_rank").value, facts.provenance.at("numa.of_rank").value);
}

TEST(NumaFacts, ARankThatIsAloneOnItsHostIsWorthANoteOnly) {
  const std::vector<NumaReport> ranks{{cpus(0, 7), two_nodes()}, {cpus(0, 7), two_nodes()}};
  const NumaFacts facts = judge_numa(ranks, {"n1", "n2"}, {});
  EXPECT_TRUE(caution_lines(facts.provenance).empty());
  ASSERT_EQ(facts.notes.size(), 1U);
  EXPECT_EQ(facts.notes[0].find("rank 0 may run on NUMA nodes 0-1 of host n1 and is the only rank there: "), 0U);
}

TEST(NumaFacts, NothingIsSaidByADescriptionOfAnotherMachine) {
  NumaLayout other = two_nodes();
  other.this_machine = false;
  other.source = "hwloc API 2.8 (set: HWLOC_SYNTHETIC), which describes another machine";
  const NumaFacts facts = judge_numa({{cpus(0, 7), other}, {cpus(0, 7), {}}}, {"n1", "n1"}, {});
  EXPECT_EQ(facts.provenance.size(), 1U);
  EXPECT_EQ(facts.provenance.at("numa.topology").value, other.source);
  EXPECT_TRUE(facts.notes.empty());
}

TEST(NumaFacts, UnknownMasksAndHostsAreSaidToBeUnknown) {
  const NumaFacts facts = judge_numa({{cpus(0, 3), two_nodes()}, {{}, {}}, {cpus(0, 3), {}}}, {"n1", "n1", "n2"}, {});
  EXPECT_EQ(facts.provenance.at("numa.of_rank").value, "node 0: rank 0; unknown: ranks 1-2");
}

using Level = Finding::Level;

TEST(NumaDoctor, JudgesWhereAProcessMayRun) {
  const NumaLayout layout = two_nodes();
  const std::string nodes =
      "2 nodes: 0 (processors 0-3, 4 core(s), 1.00 GiB), 1 (processors 4-7, 4 core(s), 1.00 GiB); hwloc API 2.8";
  const Finding bound = judge_numa(layout, {.cpus = cpus(4, 7), .memory_nodes = {1}, .company = true});
  EXPECT_EQ(bound.level, Level::kGood);
  EXPECT_EQ(bound.text, nodes + "; this process may run on node 1");

  const Finding loose = judge_numa(layout, {.cpus = cpus(0, 7), .memory_nodes = {0}, .company = true});
  EXPECT_EQ(loose.level, Level::kWarning);
  EXPECT_EQ(loose.text, nodes + "; this process may run on nodes 0-1");
  EXPECT_NE(loose.advice.find("mpirun --map-by numa --bind-to numa"), std::string::npos);
  EXPECT_EQ(judge_numa(layout, {.cpus = cpus(0, 7), .memory_nodes = {}, .company = false}).level, Level::kNote);

  const Finding far = judge_numa(layout, {.cpus = cpus(0, 3), .memory_nodes = {0, 1}, .company = false});
  EXPECT_EQ(far.level, Level::kWarning);
  EXPECT_EQ(far.text, nodes + "; this process may run on node 0, and its memory lies on nodes 0-1");
}

TEST(NumaDoctor, JudgesWhatIsKnown) {
  NumaLayout one_node = two_nodes();
  one_node.nodes.pop_back();
  EXPECT_EQ(judge_numa(one_node, {.cpus = cpus(0, 3), .memory_nodes = {}, .company = true}).level, Level::kGood);
  NumaLayout other = two_nodes();
  other.this_machine = false;
  EXPECT_EQ(judge_numa(other, {.cpus = cpus(0, 3), .memory_nodes = {}, .company = true}).level, Level::kWarning);
  EXPECT_EQ(judge_numa(two_nodes(), {.cpus = {99}, .memory_nodes = {}, .company = true}).level, Level::kWarning);
  const Finding none =
      judge_numa({.nodes = {}, .source = "this build has no hwloc", .this_machine = false}, NumaPlace{});
  EXPECT_EQ(none.level, Level::kNote);
  EXPECT_EQ(none.text, "unknown: this build has no hwloc");
  EXPECT_NE(none.advice.find("libhwloc-dev"), std::string::npos);
}

}  // namespace
}  // namespace hvd::bench::numa_test
