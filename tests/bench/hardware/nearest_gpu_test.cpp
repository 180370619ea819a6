// Tests which GPU of its host each rank takes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "bench/hardware/gpu_choice.h"
#include "tests/base/threads.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::nearest_gpu_test {
namespace {

using Lists = std::vector<std::vector<int>>;

std::vector<int> cpus(int first, int last) {
  std::vector<int> list(static_cast<std::size_t>(last - first + 1));
  std::iota(list.begin(), list.end(), first);
  return list;
}

/// Two sockets of 32 processors; the first half of the GPUs is near the first socket.
Lists two_sockets(int gpus) {
  Lists near;
  for (int gpu = 0; gpu < gpus; ++gpu) near.push_back(gpu < gpus / 2 ? cpus(0, 31) : cpus(32, 63));
  return near;
}

/// Ranks with four processors each, dealt to the two sockets in turn, as Slurm does by default.
Lists cyclic(int ranks) {
  Lists masks;
  for (int rank = 0; rank < ranks; ++rank) {
    const int first = rank % 2 * 32 + rank / 2 * 4;
    masks.push_back(cpus(first, first + 3));
  }
  return masks;
}

Lists block(int ranks) {
  Lists masks;
  for (int rank = 0; rank < ranks; ++rank) masks.push_back(cpus(64 / ranks * rank, 64 / ranks * (rank + 1) - 1));
  return masks;
}

TEST(NearestGpu, RanksDealtToTwoSocketsTakeTheGpuOfTheirSocket) {
  EXPECT_EQ(assign_gpus(cyclic(2), two_sockets(2)), (std::vector{0, 1})) << "nothing to change";
  EXPECT_EQ(assign_gpus(cyclic(4), two_sockets(4)), (std::vector{0, 2, 1, 3}));
  EXPECT_EQ(assign_gpus(cyclic(8), two_sockets(8)), (std::vector{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(assign_gpus(cyclic(3), two_sockets(8)), (std::vector{0, 4, 2})) << "fewer ranks than GPUs";
}

TEST(NearestGpu, RanksInTheOrderOfTheGpusKeepTheirLocalRank) {
  const std::vector<int> kept{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(assign_gpus(block(8), two_sockets(8)), kept) << "block:block on a DGX with four GPUs a socket";
  EXPECT_EQ(assign_gpus(Lists(8, cpus(0, 63)), two_sockets(8)), kept) << "unbound ranks are near all GPUs";
  EXPECT_EQ(assign_gpus(cyclic(8), Lists(8)), kept) << "nothing is known about the GPUs";
  EXPECT_EQ(assign_gpus(Lists(8), two_sockets(8)), kept) << "nothing is known about the ranks";
  EXPECT_EQ(assign_gpus(Lists(8, cpus(64, 70)), two_sockets(8)), kept) << "all are far";
}

// On a DGX A100 only every second NUMA node has GPUs, and the first ones belong to the fourth node.
TEST(NearestGpu, RanksWithoutANearGpuTakeWhatIsLeft) {
  Lists near;
  for (const int node : {3, 1, 7, 5}) near.insert(near.end(), 2, cpus(8 * node, 8 * node + 7));
  EXPECT_EQ(assign_gpus(block(8), near), (std::vector{1, 2, 3, 0, 5, 6, 7, 4}));
}

TEST(NearestGpu, ARankThatIsNearAllGpusGivesItsOwnToARankThatIsNearOne) {
  const Lists near{cpus(0, 1), cpus(2, 3), cpus(4, 5)};
  EXPECT_EQ(assign_gpus({cpus(0, 5), cpus(0, 1)}, near), (std::vector{1, 0}));
  EXPECT_EQ(assign_gpus({cpus(0, 3), cpus(2, 5), cpus(0, 1)}, near), (std::vector{1, 2, 0}));
  EXPECT_EQ(assign_gpus({cpus(0, 1), cpus(0, 1), cpus(0, 1)}, near), (std::vector{0, 1, 2}))
      << "more ranks on a socket than it has GPUs";
}

TEST(NearestGpu, MoreRanksThanGpusShareThemInTurn) {
  EXPECT_EQ(assign_gpus(cyclic(4), {cpus(0, 31)}), (std::vector{0, 0, 0, 0})) << "each rank sees one GPU";
  EXPECT_EQ(assign_gpus(cyclic(3), two_sockets(2)), (std::vector{0, 1, 0}));
}

class ChooseGpu : public testing::Test {
 protected:
  ChooseGpu() {
    for (int gpu = 0; gpu < 4; ++gpu) {
      gpu::Device device;
      device.index = gpu;
      device.uuid = "GPU-" + std::to_string(gpu);
      device.pci_bus_id = "0000:" + std::to_string(gpu + 1) + "B:00.0";
      list_.devices.push_back(device);
      const auto folder = folder_.path() / "bus/pci/devices" / ("0000:" + std::to_string(gpu + 1) + "b:00.0");
      std::filesystem::create_directories(folder);
      std::ofstream(folder / "local_cpulist") << (gpu < 2 ? "0-31\n" : "32-63\n");
    }
  }

  /// Returns the choice of each rank. `masks` and `lists` are indexed by rank; every `ranks_per_node` ranks are a host.
  std::vector<int> choose(const Lists& masks, const std::vector<gpu::DeviceList>& lists, int ranks_per_node) {
    auto ranks = comm::make_loopback(static_cast<int>(masks.size()), {}, ranks_per_node);
    std::vector<int> chosen(masks.size());
    test::on_threads(masks.size(), [&](std::size_t r) {
      chosen[r] = choose_gpu(*ranks[r], lists[r], masks[r], Deadline::after(std::chrono::minutes(2)), folder_.path());
    });
    return chosen;
  }

  test::Folder folder_;
  gpu::DeviceList list_;
};

TEST_F(ChooseGpu, EachHostChoosesForItself) {
  Lists masks = cyclic(4);
  for (const std::vector<int>& mask : block(4)) masks.push_back(mask);
  EXPECT_EQ(choose(masks, std::vector(8, list_), 4), (std::vector{0, 2, 1, 3, 0, 1, 2, 3}));
  EXPECT_EQ(choose(cyclic(2), std::vector(2, list_), 1), (std::vector{0, 2})) << "one rank a host";
}

TEST_F(ChooseGpu, AnOrderThatSomebodyChoseStays) {
  std::swap(list_.devices[0], list_.devices[3]);  // CUDA_VISIBLE_DEVICES=3,1,2,0
  EXPECT_EQ(choose(cyclic(4), std::vector(4, list_), 4), (std::vector{0, 1, 2, 3}));
}

TEST_F(ChooseGpu, RanksThatSeeDifferentGpusTakeTheLocalRankOfTheirs) {
  std::vector<gpu::DeviceList> lists(4);
  for (std::size_t rank = 0; rank < 4; ++rank) lists[rank].devices.push_back(list_.devices[rank]);
  EXPECT_EQ(choose(cyclic(4), lists, 4), (std::vector{0, 0, 0, 0}));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    lists[rank].devices = {list_.devices[rank / 2 * 2], list_.devices[rank / 2 * 2 + 1]};  // two GPUs of its socket
  }
  EXPECT_EQ(choose(cyclic(4), lists, 4), (std::vector{0, 1, 0, 1}));
}

}  // namespace
}  // namespace hvd::bench::nearest_gpu_test
