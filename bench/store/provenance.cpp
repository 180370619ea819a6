#include "bench/store/provenance.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sqlite3.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <span>
#include <utility>

#include "bench/store/build_info.h"
#include "bench/store/host_facts.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

// Prefixes of variables that tune a library that we use, and therefore change results. A prefix also matches variables
// of future versions. Open MPI 5 reads OMPI_MCA_* for itself and PRTE_MCA_* for its launcher.
constexpr std::array<std::string_view, 21> kTuningPrefixes{
    "OMP_",    "GOMP_",          "KMP_",         "DNNL_",         "ONEDNN_",      "UCX_",         "NCCL_",
    "MALLOC_", "GLIBC_TUNABLES", "OMPI_MCA_btl", "OMPI_MCA_coll", "OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_hwloc",
    "FI_",     "PSM2_",          "UCC_",         "MPICH_",        "I_MPI_",       "TCMALLOC_",    "PRTE_MCA_hwloc"};
// Names of other variables that change results. LD_PRELOAD usually loads another malloc.
constexpr std::array<std::string_view, 9> kTuningNames{"HVD_MAX_CPU_ISA",
                                                       "OMPI_MCA_mpi_yield_when_idle",
                                                       "OMPI_MCA_mpi_leave_pinned",
                                                       "OMPI_MCA_rmaps_base_mapping_policy",
                                                       "OMPI_MCA_rmaps_base_oversubscribe",
                                                       "CUDA_VISIBLE_DEVICES",
                                                       "LD_PRELOAD",
                                                       "PRTE_MCA_rmaps_default_mapping_policy",
                                                       "PRTE_MCA_rmaps_base_oversubscribe"};
// Variables that explain a run but do not change results: settings that are also in Options, and facts about the job.
// HVD_IMAGE_DIGEST is the digest of the container image, which no program inside the image can find out (docs/recipes).
constexpr std::array<std::string_view, 36> kExplainingNames{"HOROVOD_FUSION_THRESHOLD",
                                                            "HOROVOD_CYCLE_TIME",
                                                            "HOROVOD_CACHE_CAPACITY",
                                                            "HOROVOD_TIMELINE",
                                                            "SLURM_JOB_ID",
                                                            "SLURM_STEP_ID",
                                                            "SLURM_JOB_NAME",
                                                            "SLURM_JOB_PARTITION",
                                                            "SLURM_JOB_QOS",
                                                            "SLURM_JOB_NODELIST",
                                                            "SLURM_JOB_NUM_NODES",
                                                            "SLURM_NTASKS",
                                                            "SLURM_NTASKS_PER_NODE",
                                                            "SLURM_CPUS_PER_TASK",
                                                            "SLURM_GPUS_PER_NODE",
                                                            "SLURM_CPU_BIND",
                                                            "SLURM_MPI_TYPE",
                                                            "SLURM_CLUSTER_NAME",
                                                            "LSB_JOBID",
                                                            "LSB_JOBNAME",
                                                            "LSB_QUEUE",
                                                            "LSB_MCPU_HOSTS",
                                                            "LSB_DJOB_NUMPROC",
                                                            "JSM_NAMESPACE_SIZE",
                                                            "OMPI_COMM_WORLD_SIZE",
                                                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                            "OMPI_UNIVERSE_SIZE",
                                                            "PMI_SIZE",
                                                            "HVD_IMAGE_DIGEST",
                                                            "OMPI_MCA_mpi_oversubscribe",
                                                            "LANG",
                                                            "HWLOC_XMLFILE",
                                                            "HWLOC_SYNTHETIC",
                                                            "HWLOC_FSROOT",
                                                            "HWLOC_COMPONENTS",
                                                            "HWLOC_THISSYSTEM"};
// Processor features that decide which kernels a library chooses: those of x86, then those of Arm. No feature of one
// has a name of the other, so that fingerprints of x86 do not depend on the names of Arm.
constexpr std::array<std::string_view, 17> kKernelFlags{
    "avx2",        "fma",     "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16",
    "avx512_fp16", "asimdhp", "asimddp", "sve",      "sve2",        "bf16",        "svebf16",  "i8mm"};

bool name_suggests_secret(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const char* word : {"SECRET", "TOKEN", "PASSW", "CREDENTIAL", "_KEY", "APIKEY", "AUTH", "COOKIE"}) {
    if (upper.find(word) != std::string::npos) return true;
  }
  return false;
}

bool tunes(std::string_view name) {
  const auto is_prefix = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return std::any_of(kTuningPrefixes.begin(), kTuningPrefixes.end(), is_prefix) ||
         std::find(kTuningNames.begin(), kTuningNames.end(), name) != kTuningNames.end();
}

bool explains(std::string_view name) {
  return std::find(kExplainingNames.begin(), kExplainingNames.end(), name) != kExplainingNames.end();
}

class Collector {
 public:
  void add(const std::string& key, std::string value, bool in_fingerprint) {
    if (!value.empty()) facts_[key] = {std::move(value), in_fingerprint};
  }
  void result(const std::string& key, std::string value) { add(key, std::move(value), true); }
  void record(const std::string& key, std::string value) { add(key, std::move(value), false); }
  void record(const std::string& key, std::int64_t value) {
    if (value > 0) record(key, std::to_string(value));
  }
  Provenance take() { return std::move(facts_); }
  void merge(Provenance facts) { facts_.merge(facts); }

 private:
  Provenance facts_;
};

void collect_build(Collector& facts) {
  const BuildInfo& build = build_info();
  facts.record("build.version", std::string(build.version));
  facts.record("git.commit", std::string(build.git_commit));
  facts.record("git.state", std::string(build.git_state));
  facts.record("build.binary_hash", binary_hash());
  facts.record("build.binary", program_file());
  facts.result("build.compiler", std::string(build.compiler));
  facts.result("build.flags", std::string(build.flags));
  facts.result("build.type", std::string(build.build_type));
}

void collect_host(Collector& facts, const Environment& environment) {
  const std::vector<int> allowed = affinity();
  facts.record("host.name", host_name());
  facts.merge(processor_facts(processor()));
  facts.result("cpu.affinity_count", std::to_string(allowed.size()));
  facts.record("cpu.affinity", cpu_list(allowed));
  facts.result("cpu.quota", cpu_quota().text());
  facts.result("cpu.governor", governor());
  facts.result("cpu.boost_disabled", first_line("/sys/devices/system/cpu/intel_pstate/no_turbo"));
  facts.result("numa.nodes", first_line("/sys/devices/system/node/online"));
  const Memory mem = memory();
  facts.record("memory.total_bytes", mem.total_bytes);
  facts.record("memory.available_bytes", mem.available_bytes);
  facts.record("memory.limit_bytes", mem.limit_bytes);
  facts.result("memory.transparent_huge_pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  utsname system{};
  if (::uname(&system) == 0) {
    facts.result("os.kernel", fmt::format("{} {}", system.sysname, system.release));
    facts.record("os.kernel_build", system.version);
    facts.result("os.machine", system.machine);
  }
  facts.result("os.container", container(environment));
  facts.record("os.load", first_line("/proc/loadavg"));
}

void collect_libraries(Collector& facts) {
  facts.result("lib.glibc", gnu_get_libc_version());
  facts.record("lib.sqlite", sqlite3_libversion());
  for (const auto& [library, path] : loaded_libraries()) {
    // The file's name contains the version (libdnnl.so.2.6). The file's folder does not affect results.
    facts.add("lib.file." + library, fs::path(path).filename().string(), library != "sqlite");
    facts.record("lib.path." + library, path);
  }
}

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain = "@%+=:,./-_";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](unsigned char c) {
    return std::isalnum(c) != 0 || kPlain.find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  out += '\'';
  return out;
}

std::string launcher_hint(const Launch& launch) {
  switch (launch.launcher) {
    case Launcher::kNone: return "";
    case Launcher::kMpirun: return fmt::format("mpirun -n {} ", launch.size);
    case Launcher::kSlurm: return fmt::format("srun --mpi=pmix -N {} -n {} ", launch.nodes, launch.size);
    case Launcher::kJsm: return fmt::format("jsrun -n {} ", launch.size);
    case Launcher::kPmi: return fmt::format("mpiexec -n {} ", launch.size);
  }
  return "";
}

}  // namespace

std::string binary_hash() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  Hasher hasher;
  std::vector<char> block(1 << 16);
  std::size_t total = 0;
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    const auto got = static_cast<std::size_t>(in.gcount());
    hasher.bytes(std::as_bytes(std::span(block.data(), got)));
    total += got;
  }
  return total == 0 ? std::string() : hex64(hasher.value());
}

Provenance environment_facts(const Environment& environment) {
  Collector facts;
  for (const auto& [name, value] : environment) {
    if (name_suggests_secret(name)) continue;
    if (tunes(name)) {
      facts.result("env." + name, value);
    } else if (explains(name)) {
      facts.record("env." + name, value);
    }
  }
  return facts.take();
}

Provenance processor_facts(const Processor& cpu) {
  std::string kernel_flags;
  for (const std::string_view flag : kKernelFlags) {
    if (!cpu.has(flag)) continue;
    if (!kernel_flags.empty()) kernel_flags += ' ';
    kernel_flags += flag;
  }
  Collector facts;
  facts.result("cpu.model", cpu.model);
  facts.result("cpu.flags", kernel_flags);
  facts.result("cpu.sockets", std::to_string(cpu.sockets));
  facts.result("cpu.cores", std::to_string(cpu.cores));
  facts.result("cpu.hardware_threads", std::to_string(cpu.hardware_threads));
  facts.record("cpu.microcode", cpu.microcode);
  facts.result("cpu.hypervisor", cpu.hypervisor);
  return facts.take();
}

Provenance program_facts(const std::vector<std::string>& command, const ProcessStart& start) {
  Collector facts;
  std::error_code ignored;
  facts.record("command.line", quoted_command_line(command, start));
  facts.record("command.directory", fs::current_path(ignored).string());
  collect_build(facts);
  return facts.take();
}

Provenance collect_provenance(const std::vector<std::string>& command, const ProcessStart& start) {
  Collector facts;
  facts.merge(program_facts(command, start));
  facts.merge(environment_facts(start.environment));
  collect_host(facts, start.environment);
  collect_libraries(facts);
  const Launch& launch = start.launch;
  facts.record("launch.evidence", launch.evidence.empty() ? launch.allocation_evidence : launch.evidence);
  return facts.take();
}

std::string fingerprint(const RunRecord& run) {
  Hasher hasher;
  hasher.number(static_cast<std::uint64_t>(run.phase))
      .text(run.model)
      .number(static_cast<std::uint64_t>(run.batch_size));
  hasher.number(static_cast<std::uint64_t>(run.image_size)).number(run.auxiliary_head ? 1 : 0).text(run.device);
  hasher.text(run.compute_type).text(run.allreduce_type).text(run.schedule).text(run.comm).text(run.data_plane);
  hasher.number(static_cast<std::uint64_t>(run.world_size)).number(static_cast<std::uint64_t>(run.nodes));
  hasher.number(static_cast<std::uint64_t>(run.threads)).number(run.traced ? 1 : 0);
  hasher.number(static_cast<std::uint64_t>(run.batches_per_iter)).number(static_cast<std::uint64_t>(run.parameters));
  hasher.text(run.plan_hash);
  for (const auto& [key, fact] : run.provenance) {
    if (fact.in_fingerprint) hasher.text(key).text(fact.value);
  }
  return hex64(hasher.value());
}

std::string quoted_command_line(const std::vector<std::string>& argv, const ProcessStart& start,
                                std::string_view directory) {
  std::string line;
  if (!directory.empty()) line.append("cd ").append(shell_word(directory)).append(" && ");
  std::string variables;
  for (const auto& [key, fact] : environment_facts(start.environment)) {
    const std::string name = key.substr(4);  // without "env."
    if (fact.in_fingerprint || name.starts_with("HOROVOD_")) {
      variables.append(name).append("=").append(shell_word(fact.value)).append(" ");
    }
  }
  if (!variables.empty()) line.append("env ").append(variables);
  line += launcher_hint(start.launch);
  for (std::size_t i = 0; i < argv.size(); ++i) line.append(i == 0 ? "" : " ").append(shell_word(argv[i]));
  return line;
}

std::string quoted_command_line(const std::vector<std::string>& argv, const ProcessStart& start) {
  std::error_code ignored;
  return quoted_command_line(argv, start, fs::current_path(ignored).string());
}

ResidentSet resident_set() {
  return {proc_bytes("/proc/self/status", "VmRSS"), proc_bytes("/proc/self/status", "VmHWM")};
}

}  // namespace hvd::bench
