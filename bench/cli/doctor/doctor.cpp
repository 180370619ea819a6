#include "bench/cli/doctor/doctor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <ostream>
#include <string_view>
#include <system_error>
#include <utility>

#include "bench/cli/console.h"
#include "bench/cli/doctor/machine_rate.h"
#include "bench/cli/doctor/mpi_probe.h"
#include "bench/cli/launch.h"
#include "bench/measure/units.h"
#include "bench/store/build_info.h"
#include "bench/store/host_facts.h"
#include "bench/store/numa.h"
#include "bench/store/result_store.h"
#include "bench/world/gpu_backend.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/nccl/api.h"
#include "engine/gpu/device.h"
#include "models/graph/autodiff.h"
#include "models/thread_team.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;
using Level = Finding::Level;
using FindingList = std::vector<Finding>;

void good(FindingList& all, const char* subject, std::string text) {
  all.push_back({Level::kGood, subject, std::move(text), {}});
}

void examine_processor(FindingList& all, const Processor& cpu, const std::vector<int>& allowed) {
  good(all, "processor",
       fmt::format("{}, {} cores on {} socket(s), {} hardware threads", cpu.model.empty() ? "unknown" : cpu.model,
                   cpu.cores, cpu.sockets, cpu.hardware_threads));
  all.push_back(judge_vectors(cpu));
  const auto host = static_cast<std::size_t>(cpu.hardware_threads);
  const std::string here = fmt::format("processors {} of {}", cpu_list(allowed), host);
  if (allowed.size() < host) {
    all.push_back({Level::kNote, "affinity", "this process may use only " + here,
                   "expected under a scheduler; else see taskset, cpuset or the container's limits"});
  } else {
    good(all, "affinity", here);
  }
  if (const std::string quota = cpu_quota().text(); !quota.empty()) {
    all.push_back({Level::kWarning, "processor time",
                   fmt::format("limited to that of {} processor(s) by the cgroup", quota),
                   "use no more --threads times ranks, or raise it (containers: --cpus)"});
  }
  if (const int limit = models::thread_limit(); limit < static_cast<int>(allowed.size())) {
    all.push_back({Level::kWarning, "threads", fmt::format("OpenMP gives a rank {} at most", limit),
                   "unset OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS"});
  }
}

void examine_clock(FindingList& all, const Processor& cpu) {
  const std::string scaling = governor();
  if (scaling.empty()) {
    good(all, "clock",
         cpu.hypervisor == "yes" ? "cannot be controlled here (virtual machine)" : "no frequency control found");
  } else if (scaling == "performance") {
    good(all, "clock", "governor performance");
  } else {
    all.push_back({Level::kWarning, "clock",
                   fmt::format("governor {}: the clock follows the load, and so will the results", scaling),
                   "cpupower frequency-set -g performance (as root)"});
  }
}

void examine_load(FindingList& all, const Processor& cpu) {
  double load[1] = {0};
  if (::getloadavg(load, 1) != 1) return;
  const std::string text = fmt::format("load average {:.2f}", load[0]);
  if (load[0] > 0.1 * cpu.hardware_threads + 0.5) {
    all.push_back({Level::kWarning, "load",
                   text + " over the last minute: other programs are running, or were until now",
                   "stop them before measuring; if there are none, wait a minute"});
  } else {
    good(all, "load", text);
  }
}

/// Compares oneDNN's rates with the peak rate of multiply-adds in registers, measured at the processor's present clock.
void examine_rates(FindingList& all, int threads) {
  const PeakRate peak = peak_rate(threads, vector_level());
  const double fp32 = matrix_rate(DataType::kF32, threads);
  for (Finding& finding : judge_fp32({peak, vector_level(), threads, fp32})) all.push_back(std::move(finding));
  const std::string reason = models::onednn_unsupported_reason(DataType::kBF16);
  if (!reason.empty()) {
    all.push_back({Level::kNote, "oneDNN bf16", reason, "use --dtype fp32"});
  } else if (const double bf16 = matrix_rate(DataType::kBF16, threads); bf16 > 0) {
    all.push_back(judge_bf16(bf16, fp32, models::onednn_slow_reason(DataType::kBF16)));
  }
}

/// Compiles the networks at their own size, with few and with many images, and at their smallest size. Returns the
/// first text of models::onednn_reference_code(), after the network's name; empty if oneDNN has compiled code for all.
std::string reference_code(int threads) {
  for (const models::ModelInfo& model : models::model_catalogue()) {
    for (const std::int64_t size : {model.default_image_size, model.minimum_image_size}) {
      for (const std::int64_t batch : {1, 8}) {
        const models::Graph graph =
            models::differentiate(models::build_model({.model = model.name, .batch_size = batch, .image_size = size}));
        const std::string text = models::onednn_reference_code(graph, DataType::kF32, threads);
        if (!text.empty()) return fmt::format("{}, {} pixels, batch {}: {}", model.name, size, batch, text);
      }
    }
  }
  return {};
}

void examine_backend(FindingList& all, int threads) {
  const std::string reason = models::onednn_unsupported_reason(DataType::kF32);
  if (!reason.empty()) {
    all.push_back(
        {Level::kFault, "oneDNN", reason, "install it (Debian: apt-get install libdnnl-dev) and build again"});
    return;
  }
  const auto libraries = loaded_libraries();
  const auto file = libraries.find("onednn");
  all.push_back(
      judge_library(file == libraries.end() ? "linked statically" : file->second, models::onednn_version_reason()));
  all.push_back(judge_reference_code(reference_code(threads)));
  examine_rates(all, threads);
}

void examine_memory(FindingList& all, int threads) {
  const Memory ram = memory();
  std::string text = fmt::format("{} free of {}", bytes_text(static_cast<double>(ram.available_bytes)),
                                 bytes_text(static_cast<double>(ram.total_bytes)));
  if (ram.limit_bytes > 0) {
    text += fmt::format(", limited to {} here", bytes_text(static_cast<double>(ram.limit_bytes)));
  }
  constexpr std::int64_t kLittle = std::int64_t{2} << 30;  // VGG-16 at batch 8 takes about 2 GiB
  if (ram.available_bytes < kLittle) {
    all.push_back({Level::kWarning, "memory", text, "use a small --batch-size, or free memory"});
  } else {
    good(all, "memory", text);
  }
  good(all, "memory copy",
       fmt::format("{} read plus written, on {} threads", giga_text(copy_bandwidth(threads), "B/s"), threads));
}

void examine_numa(FindingList& all, const Launch& launch, const Environment& environment,
                  const std::vector<int>& allowed) {
  const NumaTopology topology = NumaTopology::of_machine(environment);
  constexpr std::size_t kProbeBytes = std::size_t{8} << 20;
  const std::vector<std::byte> touched(kProbeBytes, std::byte{1});
  all.push_back(judge_numa(
      topology.layout(),
      {.cpus = allowed, .memory_nodes = topology.nodes_of_memory(touched), .company = launch.size > launch.nodes}));
}

void examine_shared_memory(FindingList& all) {
  // Every algorithm keeps the gradients of processes there. Ranks that are threads use ordinary memory.
  constexpr const char* kThreads = ", or run the ranks as threads of one process (--ranks N without mpirun or srun)";
  struct statvfs shared_memory {};
  if (::statvfs("/dev/shm", &shared_memory) != 0 || ::access("/dev/shm", W_OK) != 0) {
    const std::string reason = std::generic_category().message(errno);
    all.push_back({Level::kWarning, "/dev/shm", "cannot be used (" + reason + "): processes cannot share memory",
                   std::string("mount it writable (mount -t tmpfs none /dev/shm)") + kThreads});
    return;
  }
  const double free = static_cast<double>(shared_memory.f_bavail) * static_cast<double>(shared_memory.f_frsize);
  constexpr double kTwoVggRanks = 2 * 553e6;  // VGG-16's gradients in fp32 take 553 MB per rank
  if (free < kTwoVggRanks) {
    all.push_back({Level::kWarning, "/dev/shm", bytes_text(free) + " free, less than the gradients of two VGG-16 ranks",
                   std::string("enlarge it (mount -o remount,size=50% /dev/shm; containers: --shm-size)") + kThreads});
  } else {
    good(all, "/dev/shm", bytes_text(free) + " free");
  }
}

void examine_gpus(FindingList& all, const Environment& environment) {
  const gpu::DeviceList gpus = gpu::list_devices();
  if (const std::string absence = gpu_absence(gpus); !absence.empty()) {
    all.push_back({Level::kNote, "GPU", "none to train on: " + absence, {}});
    return;
  }
  for (const gpu::Device& device : gpus.devices) {
    good(all, "GPU",
         fmt::format("{}: {}, compute capability {}.{}, {}, {}", device.index, device.name, device.compute_major,
                     device.compute_minor, bytes_text(static_cast<double>(device.memory_bytes)), device.uuid));
  }
  if (std::string reason = models::cudnn_unsupported_reason(library_search(environment)); !reason.empty()) {
    all.push_back({Level::kNote, "cuDNN", std::move(reason), {}});
  }
}

/// Examines NCCL only if there is a GPU or if the user has named a folder for NCCL.
void examine_nccl(FindingList& all, const Environment& environment) {
  const gpu::DeviceList gpus = gpu::list_devices();
  const gpu::LibrarySearch search = library_search(environment);
  if (gpus.devices.empty() && search.nccl_root.empty()) return;
  try {
    const auto nccl = comm::nccl::load(search);
    good(all, "NCCL", fmt::format("{} ({})", nccl->version().text(), nccl->name()));
  } catch (const Error& error) {
    all.push_back({Level::kNote, "NCCL", error.what(), {}});
  }
}

bool in_path(std::string_view path, const char* program) {
  while (!path.empty()) {
    const std::size_t colon = std::min(path.find(':'), path.size());
    const fs::path candidate = fs::path(path.substr(0, colon)) / program;
    if (::access(candidate.c_str(), X_OK) == 0) return true;
    path.remove_prefix(std::min(colon + 1, path.size()));
  }
  return false;
}

constexpr const char* kMpiAdvice =
    "look at HVD_MPI, the OMPI_MCA_ variables, PATH and the user id; or reinstall MPI; one rank and --ranks N need "
    "none";

/// Several ranks start MPI together, each in its own process, because only that process has the launcher's connection.
void examine_mpi(FindingList& all, const ProcessStart& start) {
  const Launch& launch = start.launch;
  if (!comm::mpi_available()) {
    all.push_back({Level::kNote, "MPI", "not in this build: ranks are threads of one process (--ranks N)",
                   "install it (Debian: apt-get install libopenmpi-dev) and build again"});
    return;
  }
  if (launch.evidence.empty()) {
    constexpr std::chrono::seconds kPatience{60};
    const MpiProbe probe = probe_mpi(mpi_choice(start), kPatience);
    if (probe.failure.empty()) {
      good(all, "MPI", fmt::format("{}, starts; {}", probe.library, probe.path));
      if (auto root = judge_root(::geteuid(), probe.library, start.environment)) all.push_back(std::move(*root));
    } else {
      all.push_back({Level::kFault, "MPI", probe.failure, kMpiAdvice});
    }
    return;
  }
  try {
    comm::load_mpi(mpi_choice(start));
    const auto world = comm::make_mpi();
    const int size = world->topology().size;
    good(all, "MPI", fmt::format("{}, starts, world of {}; {}", world->library(), size, comm::mpi_path()));
    if (launch.size > 1 && size == 1) {
      all.push_back({Level::kFault, "MPI world", launch.evidence + ", but each process is a world of its own",
                     "launch with mpirun, or srun --mpi=pmix"});
    }
  } catch (const Error& error) {
    all.push_back({Level::kFault, "MPI", error.what(), kMpiAdvice});
  }
}

void examine_launcher(FindingList& all, const Launch& launch, const Environment& environment) {
  std::string launchers;
  for (const char* program : {"mpirun", "srun", "jsrun", "bsub"}) {
    if (!in_path(value_of(environment, "PATH"), program)) continue;
    if (!launchers.empty()) launchers += ", ";
    launchers += program;
  }
  if (!launch.evidence.empty()) {
    good(all, "launcher", fmt::format("{} (rank {})", launch.evidence, launch.rank));
  } else if (launch.allocation_tasks > 1) {
    all.push_back({Level::kNote, "launcher", launch.allocation_evidence + ", but this process was started by hand",
                   "srun --mpi=pmix hvd_bench ... or mpirun hvd_bench ..."});
  } else if (launchers.empty()) {
    all.push_back({Level::kNote, "launcher", "no mpirun, srun or jsrun in PATH",
                   "one process only (--ranks N); or install one (Debian: apt-get install openmpi-bin)"});
  } else {
    good(all, "launcher", launchers);
  }
}

void examine_limits(FindingList& all) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    all.push_back({Level::kNote, "file size", "limited to " + bytes_text(static_cast<double>(limit.rlim_cur)),
                   "ulimit -f unlimited"});
  }
}

void examine_store(FindingList& all, const std::string& db_file) {
  if (db_file.empty()) return;
  const fs::path file = db_file;
  try {
    check_store_header(file);
    const StoreHeader header = read_store_header(file);
    good(all, "store",
         header.kind == StoreHeader::Kind::kOurs ? fmt::format("{}, schema version {}", db_file, header.schema_version)
                                                 : db_file + ", will be created");
    const ResultStore probe(file, new_uuid(), "hvd_bench doctor");  // throws if the directory is not writable
    if (!probe.note().empty()) all.push_back({Level::kNote, "store", probe.note(), {}});
  } catch (const Error& error) {
    all.push_back({Level::kFault, "store", error.what(), {}});
  }
  std::size_t partials = 0;
  std::error_code ignored;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const std::string prefix = file.filename().string() + ".";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".partial")) ++partials;
  }
  if (partials > 0) {
    all.push_back({Level::kNote, "store",
                   fmt::format("{} partial file(s) beside it, of sessions that run or were killed", partials),
                   "hvdb merge adds those of killed ones"});
  }
}

/// Prints the warnings and faults of a host other than rank 0's. Prints nothing if that host has none.
int print_troubles(const FindingList& findings, std::ostream& out) {
  int code = 0;
  for (const Finding& finding : findings) {
    if (finding.level != Level::kWarning && finding.level != Level::kFault) continue;
    const bool fault = finding.level == Level::kFault;
    if (fault) code = 1;
    out << host_name() << ": " << (fault ? "FAULT" : "warning") << "  " << finding.subject << "  "
        << printable(finding.text) << (finding.advice.empty() ? "" : " -> ") << printable(finding.advice) << '\n';
  }
  return code;
}

}  // namespace

std::vector<Finding> examine(const std::string& db_file, const ProcessStart& start) {
  const Launch& launch = start.launch;
  // Examine MPI first. The host's other ranks then exit, so that they do not disturb what this rank measures.
  FindingList mpi;
  examine_mpi(mpi, start);
  if (launch.local_rank != 0) return mpi;
  FindingList all;
  const Environment& environment = start.environment;
  const Processor cpu = processor();
  const std::vector<int> allowed = affinity();
  const int threads = std::max(
      1, std::min(models::thread_limit(), static_cast<int>(std::min<std::size_t>(
                                              allowed.size(), static_cast<std::size_t>(std::max(cpu.cores, 1))))));
  good(all, "program", fmt::format("{}, {}, {}", version_text(), build_info().compiler, build_info().build_type));
  examine_processor(all, cpu, allowed);
  examine_clock(all, cpu);
  examine_load(all, cpu);
  examine_backend(all, threads);
  examine_memory(all, threads);
  examine_numa(all, launch, environment, allowed);
  examine_shared_memory(all);
  examine_launcher(all, launch, environment);
  all.insert(all.end(), mpi.begin(), mpi.end());
  examine_gpus(all, environment);
  examine_nccl(all, environment);
  examine_limits(all);
  if (launch.rank == 0) examine_store(all, db_file);
  return all;
}

int print_findings(const std::vector<Finding>& findings, const Launch& launch, std::ostream& out) {
  if (launch.rank != 0) return print_troubles(findings, out);
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.subject.size());
  std::size_t warnings = 0, faults = 0;
  for (const Finding& finding : findings) {
    const char* mark = "ok     ";
    switch (finding.level) {
      case Level::kGood: break;
      case Level::kNote: mark = "note   "; break;
      case Level::kWarning:
        mark = "warning";
        ++warnings;
        break;
      case Level::kFault:
        mark = "FAULT  ";
        ++faults;
        break;
    }
    const std::string gap(width - finding.subject.size() + 2, ' ');
    out << mark << "  " << finding.subject << gap << printable(finding.text) << '\n';
    if (!finding.advice.empty()) out << std::string(width + 11, ' ') << "-> " << printable(finding.advice) << '\n';
  }
  out << (faults > 0     ? "not fit to measure: "
          : warnings > 0 ? "fit to measure, with care: "
                         : "fit to measure: ")
      << faults << " fault(s), " << warnings << " warning(s)\n"
      << std::flush;
  return faults > 0 ? 1 : 0;
}

}  // namespace hvd::bench
