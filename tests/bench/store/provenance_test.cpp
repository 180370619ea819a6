// Tests provenance: which environment variables are stored and which never are, which facts enter the fingerprint, and
// command lines that a shell can run again.
#include "bench/store/provenance.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "bench/cli/launch.h"
#include "bench/store/host_facts.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::provenance_test {
namespace {

TEST(Provenance, TheEnvironmentIsTakenByAllowListOnly) {
  const Provenance facts = environment_facts({{"OMP_NUM_THREADS", "2"},
                                              {"ONEDNN_MAX_CPU_ISA", "AVX2"},
                                              {"HVD_MAX_CPU_ISA", "AVX2"},
                                              {"OMPI_MCA_btl", "self,vader"},
                                              {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                              {"PRTE_MCA_hwloc_default_binding_policy", "none"},
                                              {"PRTE_MCA_prte_hnp_uri", "123;tcp://10.0.0.1:5000"},
                                              {"LD_PRELOAD", "libjemalloc.so"},
                                              {"SLURM_JOB_ID", "42"},
                                              {"HOROVOD_CYCLE_TIME", "1"},
                                              {"HOROVOD_SECRET_KEY", "s3"},
                                              {"UCX_AUTH_TOKEN", "s3"},
                                              {"OMPI_MCA_orte_hnp_uri", "123;tcp://10.0.0.1:5000"},
                                              {"AWS_SECRET_ACCESS_KEY", "s3"},
                                              {"HVD_IMAGE_DIGEST", "sha256:0f"},
                                              {"HWLOC_XMLFILE", "/etc/machine.xml"},
                                              {"HWLOC_PLUGINS_PATH", "/opt/plugins"},
                                              {"HOME", "/root"},
                                              {"SLURM_JWT", "s3"}});
  std::string names;
  for (const auto& [key, fact] : facts) names += key + (fact.in_fingerprint ? "! " : " ");
  EXPECT_EQ(names,
            "env.HOROVOD_CYCLE_TIME env.HVD_IMAGE_DIGEST env.HVD_MAX_CPU_ISA! env.HWLOC_XMLFILE env.LD_PRELOAD! "
            "env.OMPI_MCA_btl! "
            "env.OMP_NUM_THREADS! "
            "env.ONEDNN_MAX_CPU_ISA! env.PRTE_MCA_hwloc_default_binding_policy! "
            "env.PRTE_MCA_rmaps_default_mapping_policy! env.SLURM_JOB_ID ");
}

TEST(Provenance, FactsOfThisProcess) {
  const Provenance facts = collect_provenance({"hvd_bench", "--model", "vgg16"}, {});
  for (const char* key : {"command.line", "command.directory", "git.commit", "git.state", "build.binary_hash",
                          "build.compiler", "build.flags", "host.name", "cpu.model", "cpu.cores", "cpu.affinity",
                          "memory.total_bytes", "os.kernel", "lib.glibc", "lib.sqlite"}) {
    ASSERT_TRUE(facts.contains(key)) << key;
    EXPECT_FALSE(facts.at(key).value.empty()) << key;
  }
  EXPECT_EQ(facts.at("build.binary_hash").value.size(), 16U);
  EXPECT_TRUE(facts.at("cpu.model").in_fingerprint);
  EXPECT_FALSE(facts.at("git.commit").in_fingerprint) << "a regression gate compares commits";
  EXPECT_FALSE(facts.at("host.name").in_fingerprint);
}

TEST(Provenance, FingerprintIsEqualForWhatIsComparableOnly) {
  RunRecord run;
  run.model = "vgg16";
  run.provenance["cpu.model"] = {"A", true};
  run.provenance["host.name"] = {"n1", false};
  const std::string base = fingerprint(run);
  EXPECT_EQ(base.size(), 16U);

  RunRecord same = run;
  same.uuid = "u";
  same.seed = 7;
  same.started_utc = "later";
  same.images_per_second = Estimate{1, 1, 1};
  same.provenance["host.name"].value = "n2";
  EXPECT_EQ(fingerprint(same), base);

  const auto differs = [&](auto change) {
    RunRecord other = run;
    change(other);
    return fingerprint(other) != base;
  };
  EXPECT_TRUE(differs([](RunRecord& r) { r.batch_size = 9; }));
  EXPECT_TRUE(differs([](RunRecord& r) { r.phase = Phase::kSolo; }));
  EXPECT_TRUE(differs([](RunRecord& r) { r.threads = 2; }));
  EXPECT_TRUE(differs([](RunRecord& r) { r.traced = true; }));
  EXPECT_TRUE(differs([](RunRecord& r) { r.data_plane = "ring"; }));
  EXPECT_TRUE(differs([](RunRecord& r) { r.provenance["cpu.model"].value = "B"; }));
  EXPECT_TRUE(differs([](RunRecord& r) { r.provenance["lib.onednn"] = {"3.1", true}; }));
}

TEST(Provenance, CommandLinesRunAgain) {
  EXPECT_EQ(quoted_command_line({"bin/hvd_bench", "--db", "my results.db", "--model=vgg16"}, {}, "/home/it's me"),
            "cd '/home/it'\\''s me' && bin/hvd_bench --db 'my results.db' --model=vgg16");
  EXPECT_EQ(quoted_command_line({"hvd_bench", ""},
                                process_start({{"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_RANK", "0"},
                                               {"DNNL_MAX_CPU_ISA", "AVX2"},
                                               {"HOROVOD_CYCLE_TIME", "2"},
                                               {"SLURM_JOB_ID", "1"}}),
                                ""),
            "env DNNL_MAX_CPU_ISA=AVX2 HOROVOD_CYCLE_TIME=2 mpirun -n 2 hvd_bench ''");
}

TEST(Provenance, AShellReadsTheQuotesBack) {
  const std::string line =
      quoted_command_line({"printf", "%s|", "a b", "it's", "$HOME", "*", "\\", "\"q\"", ""}, {}, "/");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(line.c_str(), "r"), ::pclose);
  ASSERT_NE(pipe, nullptr);
  std::string out(200, '\0');
  out.resize(std::fread(out.data(), 1, out.size(), pipe.get()));
  EXPECT_EQ(out, "a b|it's|$HOME|*|\\|\"q\"||");
}

TEST(HostFacts, CpuinfoOfTwoSocketsWithHyperthreads) {
  std::string text;
  for (int cpu = 0; cpu < 8; ++cpu) {
    text += "processor\t: " + std::to_string(cpu) +
            "\nmodel name\t: Test  CPU\nphysical id\t: " + std::to_string(cpu / 4) +
            "\ncore id\t\t: " + std::to_string(cpu % 2) + "\ncpu MHz\t\t: 2100.5\nflags\t\t: fpu avx2 amx_bf16\n\n";
  }
  const Processor cpu = parse_cpuinfo(text);
  EXPECT_EQ(cpu.model, "Test  CPU");
  EXPECT_EQ(cpu.sockets, 2);
  EXPECT_EQ(cpu.cores, 4);
  EXPECT_EQ(cpu.hardware_threads, 8);
  EXPECT_TRUE(cpu.has("amx_bf16"));
  EXPECT_FALSE(cpu.has("avx"));
}

TEST(HostFacts, QuotaOfProcessorTime) {
  EXPECT_EQ(parse_cpu_max("200000 100000"), 2);
  EXPECT_EQ(parse_cpu_max("50000 100000"), 0.5);
  for (const char* none : {"max 100000", "-1 100000", " ", ""}) EXPECT_EQ(parse_cpu_max(none), 0) << none;
  EXPECT_EQ(CpuQuota{.processors = 2}.text(), "2");
  EXPECT_EQ(CpuQuota{.processors = 0.5}.text(), "0.50");
  EXPECT_EQ(CpuQuota{}.text(), "");
}

/// A made-up /proc and /sys of a host with 64 GiB, 60 of them free, and a process in the cgroup /job/step.
class Kernel {
 public:
  explicit Kernel(bool v2) : v2_(v2), groups_(v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory") {
    write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 62914560 kB\n");
    write("proc/self/cgroup", v2 ? "0::/job/step\n" : "0::/else\n4:memory:/job/step\n");
    mount("/");
  }
  void mount(const std::string& root) const {
    write("proc/self/mountinfo", "24 1 0:22 / /proc rw,relatime - proc proc rw\n35 31 0:32 " + root + " /" + groups_ +
                                     " rw shared:9 - " +
                                     (v2_ ? "cgroup2 cgroup2 rw,nsdelegate\n" : "cgroup cgroup rw,memory\n"));
  }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text;
  }
  /// Writes the files of a group. `cache`: inactive page cache. All in bytes.
  void group(const std::string& name, const std::string& limit, std::int64_t used, std::int64_t cache) const {
    const std::string folder = groups_ + "/" + name + "/memory.";
    write(folder + (v2_ ? "max" : "limit_in_bytes"), limit + "\n");
    write(folder + (v2_ ? "current" : "usage_in_bytes"), std::to_string(used) + "\n");
    write(folder + "stat", "anon 5\nactive_file 7\n" + std::string(v2_ ? "" : "inactive_file 0\ntotal_") +
                               "inactive_file " + std::to_string(cache) + "\nunevictable 0\n");
  }
  [[nodiscard]] Memory memory() const { return bench::memory(folder_.path()); }
  [[nodiscard]] double quota() const { return cpu_quota(folder_.path()).processors; }

 private:
  const bool v2_;
  const std::string groups_;
  const test::Folder folder_;
};

TEST(HostFacts, TheLimitsOfAllCgroupsAroundAProcessHold) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  for (const bool v2 : {true, false}) {
    SCOPED_TRACE(v2);
    const std::string none = v2 ? "max" : "9223372036854771712";
    const Kernel kernel(v2);
    EXPECT_EQ(kernel.memory().available_bytes, 60 * kGiB);
    kernel.group("job/step", none, 3 * kGiB, 0);
    kernel.group("job", std::to_string(8 * kGiB), 5 * kGiB, 4 * kGiB);
    EXPECT_EQ(kernel.memory().limit_bytes, 8 * kGiB) << "an outer group's";
    EXPECT_EQ(kernel.memory().available_bytes, 7 * kGiB) << "page cache is free";
    kernel.group("", std::to_string(10 * kGiB), 9 * kGiB, 0);
    EXPECT_EQ(kernel.memory().limit_bytes, 8 * kGiB);
    EXPECT_EQ(kernel.memory().available_bytes, kGiB) << "a larger limit may leave less";
    kernel.group("job/step", std::to_string(2 * kGiB), 2 * kGiB, 0);
    EXPECT_EQ(kernel.memory().available_bytes, 1) << "nothing, which 0 would not say";
    kernel.group("", std::to_string(999 * kGiB), 9 * kGiB, 0);
    kernel.group("job", none, 5 * kGiB, 0);
    kernel.group("job/step", std::to_string(64 * kGiB), 2 * kGiB, 0);
    EXPECT_EQ(kernel.memory().limit_bytes, 0) << "no less than the host has";
    EXPECT_EQ(kernel.memory().available_bytes, 60 * kGiB);
  }
}

TEST(HostFacts, AMountMayShowAPartOfTheCgroups) {
  const Kernel kernel(true);
  kernel.write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  kernel.write("sys/fs/cgroup/step/cpu.max", "200000 100000\n");
  EXPECT_EQ(kernel.quota(), 3) << "the process is in /job/step, and the group /step is another one";
  kernel.mount("/job");
  EXPECT_EQ(kernel.quota(), 2) << "as in a container without a cgroup namespace";
  kernel.mount("/other");
  EXPECT_EQ(kernel.quota(), 0) << "another container's";
  const Kernel old(false);
  old.mount("/job/step");
  old.group("", "9223372036854771712", 0, 0);
  old.write("sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 1073741824\n");
  EXPECT_EQ(old.memory().limit_bytes, 1073741824) << "the limit of a group that the mount does not show";
}

TEST(HostFacts, CpuLists) {
  EXPECT_EQ(cpu_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(cpu_list({}), "");
}

TEST(HostFacts, ThisHost) {
  EXPECT_GE(processor().hardware_threads, 1);
  EXPECT_FALSE(affinity().empty());
  EXPECT_GT(memory().available_bytes, 0);
  EXPECT_GT(resident_set().now, 1 << 20);
  EXPECT_GE(resident_set().peak, resident_set().now);
}

TEST(HostFacts, TheLastLevelCacheIsTheKernels) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "caches";
  fs::remove_all(folder);
  const auto write = [&](const std::string& index, const std::string& level, const std::string& size) {
    fs::create_directories(folder / index);
    std::ofstream(folder / index / "level") << level << "\n";
    std::ofstream(folder / index / "size") << size << "\n";
  };
  // The folder does not exist yet, so last_level_cache() returns the C library's value.
  const std::size_t of_library = last_level_cache(folder);
  write("index0", "1", "48K");
  write("index3", "3", "32768K");
  write("index2", "2", "1024K");
  EXPECT_EQ(last_level_cache(folder), std::size_t{32} << 20);
  write("index4", "4", "a lot");
  EXPECT_EQ(last_level_cache(folder), std::size_t{32} << 20);
  fs::remove_all(folder);
  fs::create_directories(folder);
  EXPECT_EQ(last_level_cache(folder), of_library);
}

}  // namespace
}  // namespace hvd::bench::provenance_test
