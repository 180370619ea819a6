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

/// Returns the folders that may have limits of `controller` for this process: the folder of its own group, and those of
/// the groups around it, whose limits hold too. Handles cgroup versions 2 and 1, mounted at the usual places. In a
/// container, the process's own group is the root of the mount.
std::vector<CgroupFolder> cgroup_folders(std::string_view controller) {
  std::vector<CgroupFolder> folders;
  std::istringstream groups(read_file("/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find("," + std::string(controller) + ",") == std::string::npos) continue;
    const fs::path root = v2 ? fs::path("/sys/fs/cgroup") : fs::path("/sys/fs/cgroup") / controller;
    for (fs::path group = line.substr(second + 1); group.has_relative_path(); group = group.parent_path()) {
      folders.push_back({root / group.relative_path(), v2});
    }
    folders.push_back({root, v2});
  }
  return folders;
}

/// Returns the smallest memory limit of this process's cgroup and the groups around it, and the memory use of the group
/// that has this limit, in bytes. Both are 0 if there is no limit.
std::pair<std::int64_t, std::int64_t> cgroup_memory() {
  std::pair<std::int64_t, std::int64_t> smallest{0, 0};
  for (const auto& [folder, v2] : cgroup_folders("memory")) {
    const std::int64_t limit = integer(first_line(folder / (v2 ? "memory.max" : "memory.limit_in_bytes")));
    if (limit <= 0 || (smallest.first > 0 && limit >= smallest.first)) continue;  // "max" and no file: 0
    smallest = {limit, integer(first_line(folder / (v2 ? "memory.current" : "memory.usage_in_bytes")))};
  }
  return smallest;
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

std::int64_t proc_bytes(const char* file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ':') {
      return integer(std::string_view(line).substr(key.size() + 1)) * 1024;
    }
  }
  return 0;
}

Memory memory() {
  Memory result;
  result.total_bytes = proc_bytes("/proc/meminfo", "MemTotal");
  result.available_bytes = proc_bytes("/proc/meminfo", "MemAvailable");
  const auto [limit, used] = cgroup_memory();
  if (limit > 0 && limit < result.total_bytes) {
    result.limit_bytes = limit;
    // The cgroup's use includes page cache, which the kernel would free. Therefore count only half of the use.
    result.available_bytes = std::min(result.available_bytes, limit - used / 2);
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

CpuQuota cpu_quota() {
  CpuQuota smallest;
  for (const auto& [folder, v2] : cgroup_folders("cpu")) {
    const double processors =
        parse_cpu_max(v2 ? first_line(folder / "cpu.max")
                         : first_line(folder / "cpu.cfs_quota_us") + " " + first_line(folder / "cpu.cfs_period_us"));
    if (processors > 0 && (smallest.processors <= 0 || processors < smallest.processors)) {
      smallest = {processors, folder.string()};
    }
  }
  // Containers may have cgroup namespaces of their own, in which equal paths are different groups.
  std::error_code none;
  smallest.group += " " + fs::read_symlink("/proc/self/ns/cgroup", none).string();
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
  constexpr std::array<std::pair<std::string_view, const char*>, 9> kOfInterest{{{"libdnnl.so", "onednn"},
                                                                                 {"libmpi.so", "mpi"},
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
