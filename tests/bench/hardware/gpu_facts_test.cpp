#include "bench/hardware/gpu_facts.h"

#include <gtest/gtest.h>

#include <cstring>

namespace hvd::bench::gpu_facts_test {
namespace {

gpu::Device h200() {
  gpu::Device device;
  device.name = "NVIDIA H200";
  device.uuid = "GPU-1";
  device.compute_major = 9;
  device.memory_bytes = 150754820096;
  device.multiprocessors = 132;
  return device;
}

BoardFacts board() {
  BoardFacts facts;
  facts.driver = "570.86.15";
  facts.max_sm_mhz = 1980;
  facts.power_limit_watts = 700;
  facts.ecc = "on";
  return facts;
}

TEST(GpuFacts, OfRanksThatAreAlike) {
  GpuDescription other = describe_gpu(h200(), board(), 12080, 12040);
  other["gpu.uuid"] = "GPU-2";
  const GpuFacts facts = merge_gpu_facts({describe_gpu(h200(), board(), 12080, 12040), other});
  EXPECT_TRUE(facts.notes.empty());
  EXPECT_EQ(facts.provenance.at("gpu.name").value, "NVIDIA H200");
  EXPECT_EQ(facts.provenance.at("gpu.uuid").value, "GPU-1; GPU-2");
  EXPECT_EQ(facts.provenance.at("gpu.cuda_driver").value, "12.8");
  EXPECT_EQ(facts.provenance.at("gpu.cuda_runtime").value, "12.4");
  EXPECT_EQ(facts.provenance.at("gpu.compute_capability").value, "9.0");
  EXPECT_EQ(facts.provenance.at("gpu.power_limit_watts").value, "700");
  EXPECT_EQ(facts.provenance.count("gpu.sm_mhz_before"), 0U) << "unknown to all";
}

TEST(GpuFacts, DifferencesAreSaid) {
  gpu::Device h100 = h200();
  h100.name = "NVIDIA H100";
  BoardFacts old = board();
  old.driver = "";
  const GpuFacts facts =
      merge_gpu_facts({describe_gpu(h200(), board(), 12080, 12040), describe_gpu(h200(), board(), 12080, 12040),
                       describe_gpu(h100, old, 12080, 12040)});
  EXPECT_EQ(facts.provenance.at("gpu.name").value, "NVIDIA H200; NVIDIA H100");
  EXPECT_EQ(facts.provenance.at("gpu.driver").value, "570.86.15; unknown");
  ASSERT_EQ(facts.notes.size(), 2U);
  EXPECT_EQ(facts.notes[0],
            "caution: the ranks' GPUs differ in name: NVIDIA H200 on rank 0, NVIDIA H100 on rank 2; all wait for the "
            "slowest");
}

// Functions of a fake NVML. They answer as the real library would, except unsupported(), which fails its query.
int init() { return 0; }
int find_device(const char* uuid, void** device) {
  static int one;
  *device = &one;
  return std::strcmp(uuid, "GPU-1") == 0 ? 0 : 6;
}
int driver(char* text, unsigned length) {
  std::strncpy(text, "570.86.15", length);
  return 0;
}
int clock(void* /*device*/, int type, unsigned* mhz) {
  *mhz = type == 1 ? 1755 : 2619;
  return 0;
}
int limit(void* /*device*/, unsigned* milliwatts) {
  *milliwatts = 650000;
  return 0;
}
int unsupported(void* /*device*/, int* /*mode*/) { return 3; }

TEST(Nvml, FillsInWhatItIsTold) {
  NvmlFunctions nvml;
  EXPECT_EQ(board_facts(nvml, "GPU-1").driver, "") << "no library";
  nvml.init = init;
  nvml.device_by_uuid = find_device;
  nvml.driver_version = driver;
  nvml.clock = clock;
  nvml.power_limit = limit;
  nvml.persistence = unsupported;
  const BoardFacts facts = board_facts(nvml, "GPU-1");
  EXPECT_EQ(facts.driver, "570.86.15");
  EXPECT_EQ(facts.sm_mhz, 1755);
  EXPECT_EQ(facts.memory_mhz, 2619);
  EXPECT_EQ(facts.max_sm_mhz, 0);
  EXPECT_DOUBLE_EQ(facts.power_limit_watts, 650);
  EXPECT_EQ(facts.persistence, "");
  EXPECT_EQ(board_facts(nvml, "GPU-9").sm_mhz, 0) << "another GPU";
}

}  // namespace
}  // namespace hvd::bench::gpu_facts_test
