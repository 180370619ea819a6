// Tests the facts about 64-bit Arm processors on any host: texts of /proc/cpuinfo as machines have printed them, and
// folders like the kernel's. Tests also that the facts about x86 processors, which fingerprints hash, stay the same.
#include "bench/store/arm_processor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "bench/store/host_facts.h"
#include "bench/store/provenance.h"

namespace hvd::bench::arm_processor_test {
namespace {

namespace fs = std::filesystem;

/// Files like those of the kernel. The destructor removes them.
class Host {
 public:
  Host() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Host() { fs::remove_all(folder_); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text;
  }
  /// Writes the topology of `sockets` sockets with `cores` cores each and `threads` hardware threads per core.
  void write_topology(int sockets, int cores, int threads = 1) const {
    int cpu = 0;
    for (int socket = 0; socket < sockets; ++socket) {
      for (int i = 0; i < cores * threads; ++i, ++cpu) {
        const fs::path topology = fs::path(fmt::format("cpu/cpu{}", cpu)) / "topology";
        write(topology / "physical_package_id", fmt::format("{}\n", socket));
        write(topology / "core_id", fmt::format("{}\n", i / threads));
      }
    }
    write("cpu/cpufreq/boost", "1\n");  // is no processor
    write("cpu/online", "0-3\n");
  }
  [[nodiscard]] Processor processor() const {
    return bench::processor({folder_ / "cpuinfo", folder_ / "cpu", folder_ / "dmi"});
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / fmt::format("arm_processor-{}", ::getpid());
};

std::string cpuinfo_of(int processors, const std::string& one) {
  std::string text;
  for (int cpu = 0; cpu < processors; ++cpu) text += fmt::format("processor\t: {}\n{}\n", cpu, one);
  return text;
}

/// One processor of NVIDIA Grace, as an nvidia/grace node of JSC printed it.
/// Source: https://github.com/EESSI/software-layer/pull/1042
constexpr const char* kGrace =
    "BogoMIPS\t: 2000.00\n"
    "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop "
    "sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb dcpodp sve2 sveaes svepmull svebitperm "
    "svesha3 svesm4 flagm2 frint svei8mm svebf16 i8mm bf16 dgh\n"
    "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n";

/// One processor of AWS Graviton 3 (instance c7g). Source: https://github.com/archspec/archspec-json/pull/51
constexpr const char* kGraviton3 =
    "BogoMIPS\t: 2100.00\n"
    "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop "
    "sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs\n"
    "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n";

/// Returns the facts in the fingerprint as lines of "key=value".
std::string marked(const Processor& cpu) {
  std::string lines;
  for (const auto& [key, fact] : processor_facts(cpu)) {
    if (fact.in_fingerprint) lines += fmt::format("{}={}\n", key, fact.value);
  }
  return lines;
}

TEST(ArmProcessor, GraceHasANameItsCoresAndItsSockets) {
  const Processor parsed = parse_cpuinfo(cpuinfo_of(72, kGrace));
  EXPECT_EQ(parsed.model, "Arm Neoverse-V2");
  EXPECT_EQ(parsed.hardware_threads, 72);
  EXPECT_TRUE(parsed.is_arm());
  EXPECT_TRUE(parsed.has("svebf16"));
  EXPECT_EQ(parsed.hypervisor, "");

  const Host host;
  host.write("cpuinfo", cpuinfo_of(288, kGrace));  // a node of four
  host.write_topology(4, 72);
  host.write("dmi/sys_vendor", "NVIDIA\n");
  EXPECT_EQ(marked(host.processor()),
            "cpu.cores=288\n"
            "cpu.flags=asimdhp asimddp sve sve2 bf16 svebf16 i8mm\n"
            "cpu.hardware_threads=288\n"
            "cpu.model=Arm Neoverse-V2\n"
            "cpu.sockets=4\n");
}

TEST(ArmProcessor, GravitonIsAVirtualMachineOrBareMetal) {
  const Host host;
  host.write("cpuinfo", cpuinfo_of(64, kGraviton3));
  host.write_topology(1, 64);
  host.write("dmi/sys_vendor", "Amazon EC2\n");
  host.write("dmi/product_name", "c7g.16xlarge\n");
  EXPECT_EQ(marked(host.processor()),
            "cpu.cores=64\n"
            "cpu.flags=asimdhp asimddp sve\n"
            "cpu.hardware_threads=64\n"
            "cpu.hypervisor=yes\n"
            "cpu.model=Arm Neoverse-V1\n"
            "cpu.sockets=1\n");
  host.write("dmi/product_name", "c7g.metal\n");
  EXPECT_EQ(host.processor().hypervisor, "no");
}

TEST(ArmProcessor, CoresOfSeveralThreadsCountOnce) {
  const Host host;
  host.write("cpuinfo", cpuinfo_of(16, "Features\t: fp asimd\nCPU implementer\t: 0x43\nCPU part\t: 0x0af\n"));
  host.write_topology(2, 2, 4);
  const Processor cpu = host.processor();
  EXPECT_EQ(cpu.model, "Cavium ThunderX2");
  EXPECT_EQ(cpu.sockets, 2);
  EXPECT_EQ(cpu.cores, 4);
  EXPECT_EQ(cpu.hardware_threads, 16);
}

TEST(ArmProcessor, WhatTheKernelDoesNotTellStaysAsCpuinfoHasIt) {
  const Host host;
  host.write("cpuinfo", cpuinfo_of(8, kGrace));
  EXPECT_EQ(host.processor().sockets, 1);
  EXPECT_EQ(host.processor().cores, 8);
  EXPECT_EQ(host.processor().hypervisor, "");
  host.write("cpu/cpu0/topology/physical_package_id", "-1\n");
  host.write("cpu/cpu0/topology/core_id", "-1\n");
  EXPECT_EQ(host.processor().sockets, 1);
  EXPECT_EQ(host.processor().cores, 8);
  EXPECT_EQ(arm_core_name("0x4e", "0x004"), "Arm implementer 0x4e part 0x004");
}

// x86 processors: every fact comes from /proc/cpuinfo alone, and the marked ones are those that older versions hashed.
TEST(X86Processor, KeepsTheFactsThatFingerprintsHash) {
  std::string text;
  for (int cpu = 0; cpu < 8; ++cpu) {
    text += fmt::format(
        "processor\t: {}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9R14\nmicrocode\t: 0xa101144\n"
        "cpu MHz\t\t: 3700.002\nphysical id\t: {}\ncore id\t\t: {}\n"
        "flags\t\t: fpu sse2 hypervisor avx avx2 fma avx512f avx512bw avx512_vnni avx512_bf16\n\n",
        cpu, cpu / 4, cpu % 4 / 2);
  }
  const Host host;
  host.write("cpuinfo", text);
  host.write_topology(4, 72);
  host.write("dmi/sys_vendor", "Amazon EC2\n");
  host.write("dmi/product_name", "c7a.metal-48xl\n");
  const std::string facts =
      "cpu.cores=4\n"
      "cpu.flags=avx2 fma avx512f avx512bw avx512_vnni avx512_bf16\n"
      "cpu.hardware_threads=8\n"
      "cpu.hypervisor=yes\n"
      "cpu.model=AMD EPYC 9R14\n"
      "cpu.sockets=2\n";
  EXPECT_EQ(marked(host.processor()), facts);
  EXPECT_EQ(marked(parse_cpuinfo(text)), facts);
  EXPECT_FALSE(processor_facts(host.processor()).at("cpu.microcode").in_fingerprint);

  // Without the lines "physical id", "core id" and "hypervisor", too.
  host.write("cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu amx_bf16\n");
  EXPECT_EQ(marked(host.processor()),
            "cpu.cores=1\ncpu.flags=amx_bf16\ncpu.hardware_threads=1\ncpu.hypervisor=no\ncpu.model=Some CPU\n"
            "cpu.sockets=1\n");
}

}  // namespace
}  // namespace hvd::bench::arm_processor_test
