#include "bench/store/host_facts.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "bench/store/arm_processor.h"
#include "engine/base/files.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::int64_t integer(std::string_view text) {
  std::int64_t value = 0;
  const std::string_view digits = trim(text);
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

struct CgroupFolder {
  fs::path path;
  bool v2 = true;
};

/// A mount of a hierarchy of cgroups. Its folder shows the group `root` and the groups below it.
struct CgroupMount {
  fs::path folder, root;
};

/// Returns the mounts of cgroup version 2 if `controller` is empty, else those of this controller of version 1.
/// Source: proc_pid_mountinfo(5).
std::vector<CgroupMount> cgroup_mounts(const fs::path& system, const std::string& controller) {
  std::vector<CgroupMount> mounts;
  std::istringstream lines(read_file(system / "proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, folder, word, type, source, options;
    words >> id >> parent >> device >> root >> folder;
    while (words >> word && word != "-") continue;  // optional fields
    words >> type >> source >> options;
    const bool wanted = controller.empty() ? type == "cgroup2"
                                           : type == "cgroup" && ("," + options + ",").find("," + controller + ",") !=
                                                                     std::string::npos;
    if (wanted) mounts.push_back({system / fs::path(folder).relative_path(), root});
  }
  return mounts;
}

/// Returns the folders that may have limits of `controller` for this process: the folder of its own group, and those of
/// the groups around it up to the root of the mount, whose limits hold too. Handles cgroup versions 2 and 1.
std::vector<CgroupFolder> cgroup_folders(const fs::path& system, const std::string& controller) {
  std::vector<CgroupFolder> folders;
  std::istringstream groups(read_file(system / "proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    for (const CgroupMount& mount : cgroup_mounts(system, v2 ? "" : controller)) {
      // In a container without a cgroup namespace both paths begin with the container's group.
      fs::path group = fs::path(line.substr(second + 1)).lexically_relative(mount.root);
      if (group.empty() || *group.begin() == "..") continue;  // the mount does not show the process's group
      for (; !group.empty() && group != "."; group = group.parent_path()) folders.push_back({mount.folder / group, v2});
      folders.push_back({mount.folder, v2});
    }
  }
  return folders;
}

/// Returns the number of the line "key 123" in the cgroup's file memory.stat; 0 if absent.
std::int64_t memory_stat(const fs::path& group, std::string_view key) {
  std::ifstream in(group / "memory.stat");
  std::string name;
  for (std::int64_t value = 0; in >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

}  // namespace

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return std::string(trim(line));
}

bool Processor::has(std::string_view flag) const { return std::find(flags.begin(), flags.end(), flag) != flags.end(); }

Processor parse_cpuinfo(std::string_view cpuinfo) {
  Processor result;
  std::set<std::string> sockets;
  std::set<std::pair<std::string, std::string>> cores;
  std::string socket, implementer, part;
  std::istringstream lines{std::string(cpuinfo)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = trim(std::string_view(line).substr(0, colon));
    const std::string value(trim(std::string_view(line).substr(colon + 1)));
    if (key == "processor") ++result.hardware_threads;
    if (key == "physical id") sockets.insert(socket = value);
    if (key == "core id") cores.emplace(socket, value);
    if (result.hardware_threads > 1) continue;
    if (key == "model name") result.model = value;
    if (key == "CPU implementer") implementer = value;
    if (key == "CPU part") part = value;
    if (key == "microcode") result.microcode = value;
    if (key == "flags" || key == "Features") {
      std::istringstream words(value);
      for (std::string flag; words >> flag;) result.flags.push_back(flag);
    }
  }
  result.sockets = static_cast<int>(std::max<std::size_t>(sockets.size(), 1));
  result.cores = cores.empty() ? result.hardware_threads : static_cast<int>(cores.size());
  if (result.is_arm()) {
    if (result.model.empty()) result.model = arm_core_name(implementer, part);
  } else {
    result.hypervisor = result.has("hypervisor") ? "yes" : "no";
  }
  return result;
}

Processor processor(const ProcessorFiles& files) {
  Processor result = parse_cpuinfo(read_file(files.cpuinfo).value_or(""));
  if (!result.is_arm()) return result;
  const ProcessorTopology topology = kernel_topology(files.topology);
  if (topology.sockets > 0) result.sockets = topology.sockets;
  if (topology.cores > 0) result.cores = topology.cores;
  result.hypervisor = firmware_hypervisor(files.firmware);
  return result;
}

std::size_t last_level_cache(const std::filesystem::path& folder) {
  int last = 0;
  std::size_t bytes = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    int level = 0;
    std::size_t kibibytes = 0;  // the kernel writes all sizes in this form: "32768K"
    const std::string level_text = first_line(entry.path() / "level");
    const std::string size_text = first_line(entry.path() / "size");
    const auto end = [](const std::string& text) { return text.data() + text.size(); };
    if (std::from_chars(level_text.data(), end(level_text), level).ec != std::errc()) continue;
    const auto [rest, trouble] = std::from_chars(size_text.data(), end(size_text), kibibytes);
    if (trouble != std::errc() || rest == end(size_text) || *rest != 'K' || level <= last) continue;
    last = level;
    bytes = kibibytes << 10;
  }
  if (bytes > 0) return bytes;
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    if (const long size = ::sysconf(level); size > 0) return static_cast<std::size_t>(size);
  }
  return 0;
}

std::vector<int> affinity() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string out;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += std::to_string(cpus[i]);
    if (last > i) out.append("-").append(std::to_string(cpus[last]));
    i = last + 1;
  }
  return out;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc{} || first < 0) return {};
    int last = first;
    if (read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
      constexpr int kMaxCpus = 1 << 16;
      if (read.ec != std::errc{} || last < first || last >= kMaxCpus) return {};
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (read.ptr != end && (*read.ptr != ',' || read.ptr + 1 == end)) return {};
    at = read.ptr == end ? end : read.ptr + 1;
  }
  return cpus;
}

std::vector<int> cores_of(const std::vector<int>& cpus, const fs::path& folder) {
  std::vector<int> cores;
  for (const int cpu : cpus) {
    const fs::path siblings = folder / fmt::format("cpu{}", cpu) / "topology" / "thread_siblings_list";
    const std::vector<int> threads = parse_cpu_list(first_line(siblings));
    cores.push_back(threads.empty() ? cpu : threads.front());
  }
  return cores;
}

std::int64_t proc_bytes(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ':') {
      return integer(std::string_view(line).substr(key.size() + 1)) * 1024;
    }
  }
  return 0;
}

Memory memory(const fs::path& system) {
  Memory result;
  result.total_bytes = proc_bytes(system / "proc/meminfo", "MemTotal");
  result.available_bytes = proc_bytes(system / "proc/meminfo", "MemAvailable");
  for (const auto& [group, v2] : cgroup_folders(system, "memory")) {
    std::int64_t limit = integer(first_line(group / (v2 ? "memory.max" : "memory.limit_in_bytes")));
    if (const std::int64_t outer = memory_stat(group, "hierarchical_memory_limit"); outer > 0) {
      limit = std::min(limit, outer);  // in version 1: the smallest limit, also of groups that the mount does not show
    }
    if (limit <= 0 || limit >= result.total_bytes) continue;  // "max" and no file: 0
    // The kernel frees inactive page cache before it kills a process. In version 1 only the lines "total_" count the
    // groups inside too, as the usage does. Source: Linux, Documentation/admin-guide/cgroup-v1/memory.rst, section 5.2.
    const std::int64_t cache = memory_stat(group, v2 ? "inactive_file" : "total_inactive_file");
    const std::int64_t used = integer(first_line(group / (v2 ? "memory.current" : "memory.usage_in_bytes"))) - cache;
    const std::int64_t left = std::max<std::int64_t>(1, limit - std::max<std::int64_t>(0, used));  // 0 means unknown
    result.limit_bytes = result.limit_bytes > 0 ? std::min(result.limit_bytes, limit) : limit;
    result.available_bytes = result.available_bytes > 0 ? std::min(result.available_bytes, left) : left;
  }
  return result;
}

double parse_cpu_max(std::string_view text) {
  std::istringstream words{std::string(text)};
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return 0;  // no quota: "max 100000", "-1 100000"
  return quota / period;
}

std::string CpuQuota::text() const {
  if (processors <= 0) return {};
  return fmt::format("{:.{}f}", processors, processors == std::floor(processors) ? 0 : 2);
}

CpuQuota cpu_quota(const fs::path& system) {
  CpuQuota smallest;
  for (const auto& [folder, v2] : cgroup_folders(system, "cpu")) {
    const double processors =
        parse_cpu_max(v2 ? first_line(folder / "cpu.max")
                         : first_line(folder / "cpu.cfs_quota_us") + " " + first_line(folder / "cpu.cfs_period_us"));
    if (processors > 0 && (smallest.processors <= 0 || processors < smallest.processors)) {
      smallest = {processors, folder.string()};
    }
  }
  // Containers may have cgroup namespaces of their own, in which equal paths are different groups.
  std::error_code none;
  smallest.group += " " + fs::read_symlink(system / "proc/self/ns/cgroup", none).string();
  return smallest;
}

double host_processor_seconds() {
  std::istringstream line(first_line("/proc/stat"));  // "cpu  user nice system idle iowait irq softirq ...", in ticks
  std::string name;
  std::array<double, 7> ticks{};
  line >> name;
  for (double& spent : ticks) line >> spent;
  if (!line || name != "cpu") return 0;
  const double busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
  return busy / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_processor_seconds() {
  rusage used{};
  if (::getrusage(RUSAGE_SELF, &used) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::string governor() { return first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); }

std::string container(const Environment& environment) {
  for (const auto& [variable, kind] :
       {std::pair{"APPTAINER_CONTAINER", "apptainer"}, {"SINGULARITY_CONTAINER", "singularity"}}) {
    if (environment.contains(std::string_view(variable))) return kind;
  }
  std::error_code ignored;
  if (fs::exists("/.dockerenv", ignored)) return "docker";
  if (fs::exists("/run/.containerenv", ignored)) return "podman";
  const std::string groups = read_file("/proc/1/cgroup").value_or("");
  for (const char* kind : {"docker", "kubepods", "containerd", "lxc"}) {
    if (groups.find(kind) != std::string::npos) return kind;
  }
  return {};
}

std::map<std::string, std::string> loaded_libraries() {
  constexpr std::array<std::pair<std::string_view, const char*>, 11> kOfInterest{{{"libdnnl.so", "onednn"},
                                                                                  {"libmpi.so", "mpi"},
                                                                                  {"libmpich.so", "mpi"},
                                                                                  {"libmpi_ibm.so", "mpi"},
                                                                                  {"libgomp.so", "gomp"},
                                                                                  {"libomp.so", "omp"},
                                                                                  {"libiomp5.so", "iomp"},
                                                                                  {"libtbb.so", "tbb"},
                                                                                  {"libucp.so", "ucx"},
                                                                                  {"libfabric.so", "libfabric"},
                                                                                  {"libsqlite3.so", "sqlite"}}};
  std::map<std::string, std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash);
    const std::string file = fs::path(path).filename().string();
    for (const auto& [prefix, key] : kOfInterest) {
      if (file.starts_with(prefix)) found.emplace(key, path);
    }
  }
  return found;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

}  // namespace hvd::bench
