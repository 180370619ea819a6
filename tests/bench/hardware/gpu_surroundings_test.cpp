#include "bench/hardware/gpu_surroundings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "bench/cli/nccl_log.h"
#include "bench/hardware/gpu_facts.h"
#include "bench/store/host_facts.h"

namespace hvd::bench::gpu_surroundings_test {
namespace {

namespace fs = std::filesystem;

// The texts of these logs come from the sources of NCCL 2.18.5 and 2.28.9 (init.cc, net_ib.cc, net_socket.cc,
// transport/*.cc), because no log of a cluster was at hand.
constexpr const char* kInfiniband = R"(a01:7:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
a01:7:9 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
a01:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
a01:7:9 [0] NCCL INFO Using network IB
a01:7:9 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA
a01:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
a01:7:9 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM/read
)";
constexpr const char* kSockets = R"(b:1:2 [0] NCCL INFO NET/IB : No device found.
b:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0> [1]eth1:10.0.1.2<0>
2026-11-23 10:00:00 b:1:2 [0] NCCL INFO Using network Socket
b:1:2 [0] NCCL INFO NET/Socket: Using 2 threads and 8 sockets per thread
)";

TEST(NcclNetwork, IsReadFromTheLog) {
  const NcclNetwork infiniband = parse_nccl_log(kInfiniband);
  EXPECT_EQ(infiniband.text(), "IB (mlx5_0:1/IB, mlx5_1:1/RoCE)");
  EXPECT_EQ(infiniband.paths_text(), "NET/IB/0/GDRDMA; P2P/CUMEM/read");
  EXPECT_EQ(parse_nccl_log(kSockets).text(), "Socket (eth0, eth1)");
}

TEST(NcclNetwork, OfAPluginHasItsWholeNameAndItsAdapters) {
  const NcclNetwork aws = parse_nccl_log(
      "b:1:2 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)\n"
      "b:1:2 [0] NCCL INFO Using network AWS Libfabric\r\n"
      "b:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/AWS Libfabric/0/GDRDMA\n");
  EXPECT_EQ(aws.text(), "AWS Libfabric");
  EXPECT_EQ(aws.paths_text(), "NET/AWS Libfabric/0/GDRDMA");
  const NcclNetwork sharp = parse_nccl_log(
      "b:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
      "b:1:2 [0] NCCL INFO Using network IBext_v8\n");
  EXPECT_EQ(sharp.text(), "IBext_v8 (mlx5_0:1/IB/SHARP, mlx5_1:1/IB)");
}

TEST(NcclNetwork, IsUnknownWhereTheLogDoesNotSay) {
  for (const char* const log :
       {"", "Using network IB", "NCCL INFO Using network \n", "\x01\xff[[[\n\n", "NCCL INFO "}) {
    EXPECT_EQ(parse_nccl_log(log).text(), "unknown") << log;
    EXPECT_EQ(parse_nccl_log(log).paths_text(), "");
  }
  EXPECT_EQ(parse_nccl_log("NCCL INFO NET/IB : Using [0\nNCCL INFO Using network IB\n").text(), "IB");
}

class Sys : public testing::Test {
 protected:
  Sys() : root_(fs::temp_directory_path() / ("hvd_sys_" + std::to_string(::getpid()))) {}
  ~Sys() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void put(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  fs::path root_;
};

TEST_F(Sys, LinksAreThoseOfTheAdapters) {
  put("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  EXPECT_EQ(network_link(parse_nccl_log(kInfiniband), 4, root_).gigabytes_per_second, 0) << "of one nothing is known";
  put("class/infiniband/mlx5_1/ports/1/rate", "200 Gb/sec (4X HDR)");
  EXPECT_DOUBLE_EQ(network_link(parse_nccl_log(kInfiniband), 4, root_).gigabytes_per_second, 75);
  EXPECT_DOUBLE_EQ(network_link(parse_nccl_log(kInfiniband), 1, root_).gigabytes_per_second, 25)
      << "one rank on the host uses one adapter, maybe the slower one";
  put("class/net/eth0/speed", "25000");
  put("class/net/eth1/speed", "-1");  // a virtual device reports -1
  EXPECT_EQ(network_link(parse_nccl_log(kSockets), 4, root_).gigabytes_per_second, 0);
  put("class/net/eth1/speed", "10000");
  EXPECT_DOUBLE_EQ(network_link(parse_nccl_log(kSockets), 4, root_).gigabytes_per_second, 4.375);
  EXPECT_DOUBLE_EQ(network_link({.name = "AWS Libfabric", .adapters = {}, .paths = {}}, 4, root_).gigabytes_per_second,
                   75)
      << "a plugin that lists none: all adapters of the host";
  EXPECT_EQ(network_link({.name = "AWS Libfabric", .adapters = {}, .paths = {}}, 4, "/no").gigabytes_per_second, 0);
  EXPECT_EQ(network_link({}, 4, root_).gigabytes_per_second, 0) << "nothing is known of the network";
  EXPECT_EQ(network_link({.name = "Socket", .adapters = {"../../etc"}, .paths = {}}, 4, root_).gigabytes_per_second, 0);
}

TEST(GpuLink, IsNvlinkOrPcie) {
  BoardFacts board;
  EXPECT_EQ(gpu_link(board).gigabytes_per_second, 0);
  board.pcie_generation = 5;
  board.pcie_width = 16;
  EXPECT_EQ(gpu_link(board).name, "PCIe 5 x16");
  EXPECT_NEAR(gpu_link(board).gigabytes_per_second, 63, 0.1);
  board.nvlinks = 18;
  board.nvlink_version = 6;
  EXPECT_EQ(gpu_link(board).name, "18 NVLinks");
  EXPECT_DOUBLE_EQ(gpu_link(board).gigabytes_per_second, 450);
  board.nvlink_version = 99;
  EXPECT_EQ(gpu_link(board).gigabytes_per_second, 0) << "not known yet";
}

TEST(Bandwidth, FarBelowTheLinkIsACaution) {
  const Link link{"18 NVLinks", 450};
  const std::vector<double> bytes{100, 100e6};
  EXPECT_DOUBLE_EQ(bus_gigabytes_per_second(4, bytes, {1e-5, 1e-3}), 150);
  EXPECT_EQ(bandwidth_caution(link, 4, bytes, {1e-5, 1e-3}), "");
  EXPECT_EQ(bandwidth_caution(link, 4, bytes, {1e-5, 10e-3}),
            "reductions alone move 15 GB/s (bus bandwidth), far below the 450 GB/s of 18 NVLinks: see nccl.network and "
            "nccl.paths in the run's facts, and try NCCL_DEBUG=INFO and nccl-tests");
  EXPECT_EQ(bandwidth_caution({"", 0}, 4, bytes, {1e-5, 10e-3}), "") << "no link is known";
  EXPECT_EQ(bandwidth_caution(link, 4, {1e6}, {1e-3}), "") << "bound by latency";
  EXPECT_EQ(bandwidth_caution(link, 512, bytes, {1e-5, 10e-3}), "") << "200 KB a rank, bound by latency";
  EXPECT_EQ(bandwidth_caution(link, 4, bytes, {}), "");
}

TEST(CpuList, IsReadAsTheKernelWritesIt) {
  EXPECT_EQ(parse_cpu_list("0-2,8"), (std::vector<int>{0, 1, 2, 8}));
  for (const char* const text : {"", "x", "3-1", "1,", "-1", "0-99999999", "1 2"}) {
    EXPECT_TRUE(parse_cpu_list(text).empty()) << text;
  }
  EXPECT_EQ(distance({0, 1}, "2-3"), "CPUs 0-1, and its GPU is near 2-3");
  EXPECT_EQ(distance({0, 1, 2}, "2-3"), "");
  EXPECT_EQ(distance({0, 1}, ""), "");
}

TEST_F(Sys, PlaceOfARankIsJudged) {
  put("bus/pci/devices/0000:1b:00.0/local_cpulist", "64-127");
  gpu::Device device;
  device.pci_bus_id = "0000:1B:00.0";
  RankPlace place{.ranks_on_host = 4, .nodes = 1, .ranks = 4, .cpus = {0, 1}, .nccl_log = kInfiniband, .sys = root_};
  GpuDescription far, good;
  describe_place(far, device, {}, place);
  place.cpus = {70};
  device.visible = 4;
  describe_place(good, device, {}, place);
  const GpuFacts facts = merge_gpu_facts({good, far, far});
  EXPECT_EQ(
      facts.provenance.at("caution.gpu_far_from_cpus").value,
      "rank 1 and 1 more may run on CPUs 0-1, and its GPU is near 64-127: bind ranks to the processors near their "
      "GPUs (srun --distribution=block:block --cpu-bind=cores, mpirun --map-by)");
  EXPECT_EQ(facts.provenance.at("caution.one_visible_gpu")
                .value.find("rank 1 and 1 more sees one GPU though 4 ranks run on its host: NCCL may lose NVLink"),
            0U);
  EXPECT_EQ(facts.provenance.at("nccl.paths").value, "NET/IB/0/GDRDMA; P2P/CUMEM/read");
  EXPECT_EQ(facts.link.gigabytes_per_second, 0);
  const GpuFacts well = merge_gpu_facts({good, good});
  EXPECT_EQ(well.provenance.count("caution.gpu_far_from_cpus") + well.provenance.count("caution.one_visible_gpu"), 0U);
  GpuDescription alone;
  place.ranks_on_host = 1;
  device.visible = 1;
  describe_place(alone, device, {}, place);
  EXPECT_EQ(merge_gpu_facts({alone, alone}).provenance.count("caution.one_visible_gpu"), 0U);
}

TEST_F(Sys, SocketsBesideAnAdapterWithALinkAreACaution) {
  put("class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE");
  put("class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
  put("class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE");
  put("class/infiniband/mlx5_2/ports/1/state", "1: DOWN");
  put("class/infiniband/mlx5_3", "no folder");
  put("class/net/eth0/speed", "25000");
  put("class/net/eth1/speed", "25000");
  const auto caution = [this](const std::string& log, int nodes) {
    GpuDescription gpu;
    describe_place(gpu, {}, {},
                   {.ranks_on_host = 4, .nodes = nodes, .ranks = 8, .cpus = {}, .nccl_log = log, .sys = root_});
    const Provenance facts = merge_gpu_facts({gpu, gpu}).provenance;
    const auto found = facts.find("caution.nccl_over_sockets");
    return found == facts.end() ? std::string() : found->second.value;
  };
  EXPECT_EQ(caution(kSockets, 2)
                .find("rank 0 and 1 more uses sockets between nodes, though mlx5_0, mlx5_1 of its host "
                      "has a link: NCCL_DEBUG=INFO says why"),
            0U)
      << caution(kSockets, 2);
  EXPECT_EQ(caution(kSockets, 1), "") << "on one node NCCL uses no network";
  EXPECT_EQ(caution(kInfiniband, 2), "");
  EXPECT_EQ(caution("", 2), "") << "nothing is known of the network";
  fs::remove_all(root_ / "class/infiniband");
  EXPECT_EQ(caution(kSockets, 2), "") << "a host without such adapters";
}

TEST(NcclLog, KeepsTheUsersSettings) {
  const NcclLog theirs(Environment{{"NCCL_DEBUG", "WARN"}});
  EXPECT_EQ(theirs.text(), "");
  EXPECT_EQ(::getenv("NCCL_DEBUG_FILE"), nullptr);
}

// The test writes the log as NCCL does: it opens the file by its name and appends lines.
TEST(NcclLog, IsReadWhileItIsWritten) {
  const NcclLog log(Environment{});
  ASSERT_STREQ(::getenv("NCCL_DEBUG"), "INFO");
  std::ofstream file(::getenv("NCCL_DEBUG_FILE"));
  file << "h:1:2 [0] NCCL INFO Using network IB\n" << std::flush;
  EXPECT_EQ(parse_nccl_log(log.text()).name, "IB");
  for (const char* const name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) ::unsetenv(name);
}

}  // namespace
}  // namespace hvd::bench::gpu_surroundings_test
