// Facts about this process and host from /proc, /sys and the C library. No function fails: a fact that cannot be read
// is empty or zero. Any thread may call these functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/store/process_start.h"

namespace hvd::bench {

/// Returns the first line of a small file, trimmed; empty if the file cannot be read.
std::string first_line(const std::filesystem::path& file);

/// Facts from /proc/cpuinfo. The counts are those of the whole host; all other facts are those of the first processor.
struct Processor {
  std::string model;  ///< "Intel(R) Xeon(R) Platinum 8480+", "Arm Neoverse-V2"
  std::string microcode;
  std::vector<std::string> flags;
  int sockets = 0;  ///< sockets of the host
  int cores = 0;    ///< physical cores of the host
  int hardware_threads = 0;
  std::string hypervisor;  ///< "yes" in a virtual machine, "no" outside of one; empty: unknown
  [[nodiscard]] bool has(std::string_view flag) const;
  /// Returns true for 64-bit Arm.
  [[nodiscard]] bool is_arm() const { return has("asimd"); }
};

/// The kernel's files about processors. Tests give other ones.
struct ProcessorFiles {
  std::filesystem::path cpuinfo = "/proc/cpuinfo";
  std::filesystem::path topology = "/sys/devices/system/cpu";
  std::filesystem::path firmware = "/sys/class/dmi/id";
};
/// Returns the facts about this host's processors. On Arm, /proc/cpuinfo lacks sockets, cores and hypervisor, so they
/// come from the other files.
Processor processor(const ProcessorFiles& files = {});
/// Parses the text of /proc/cpuinfo. Pure.
Processor parse_cpuinfo(std::string_view cpuinfo);

/// Returns the bytes of the last-level cache that the first processor uses; 0 if unknown. The size comes from the
/// kernel's files in `folder`. Without these files it comes from the C library, which on some processors returns the
/// size for a whole socket.
std::size_t last_level_cache(const std::filesystem::path& folder = "/sys/devices/system/cpu/cpu0/cache");

/// Returns the numbers of the processors on which this process may run, ascending.
std::vector<int> affinity();
/// Returns {0,1,2,5} as "0-2,5".
std::string cpu_list(const std::vector<int>& cpus);
/// Parses "0-3,8" to {0,1,2,3,8}. Returns an empty list if the text has another form. Pure.
std::vector<int> parse_cpu_list(std::string_view text);

/// Returns for each of `cpus` its physical core, named by the core's first processor: processors with equal names are
/// hardware threads of one core. A processor has a core of its own if the kernel's files in `folder` do not tell.
std::vector<int> cores_of(const std::vector<int>& cpus,
                          const std::filesystem::path& folder = "/sys/devices/system/cpu");

struct Memory {
  std::int64_t total_bytes = 0;      ///< memory of the host
  std::int64_t available_bytes = 0;  ///< memory that this process can still get; 0: unknown
  std::int64_t limit_bytes = 0;      ///< smallest limit of this process's cgroup and the groups around it; 0: no limit
};
/// Returns what `doctor` shows and what a run may use: the host's free memory (MemAvailable), or what a cgroup around
/// this process leaves if that is less. Inactive page cache counts as free, because the kernel frees it on demand.
/// `system` has the kernel's folders proc and sys; tests give another one.
Memory memory(const std::filesystem::path& system = "/");

/// Returns the value of "Key:  123 kB" in `file` (a path such as "/proc/meminfo"), in bytes; 0 if absent.
std::int64_t proc_bytes(const std::filesystem::path& file, std::string_view key);

/// The processor time that a cgroup may use. affinity() does not show it. If the processes of the group need more time,
/// the kernel stops them for a part of every tenth of a second.
struct CpuQuota {
  double processors = 0;                   ///< time per time; 0: no limit
  std::string group = {};                  ///< which cgroup of the host has this limit
  [[nodiscard]] std::string text() const;  ///< "2", "0.50"; empty without a limit
};
/// Returns the smallest quota of this process's cgroup and the groups around it. `system`: as for memory().
CpuQuota cpu_quota(const std::filesystem::path& system = "/");
/// Returns the processors that the text of cpu.max grants ("200000 100000": 2); 0 without a limit. Pure.
double parse_cpu_max(std::string_view text);

/// Return the seconds of processor time that all programs of this host have used since it started, and that this
/// process has used. 0 if the kernel does not tell.
double host_processor_seconds();
double own_processor_seconds();

/// Returns the frequency governor of CPU 0, such as "performance"; empty if there is none (most virtual machines).
std::string governor();
/// Returns "docker", "podman", "apptainer", ...; empty if no container is detected.
std::string container(const Environment& environment);
/// Returns paths of known shared libraries in this process by short name: {"onednn": "/usr/lib/.../libdnnl.so.2.6"}.
std::map<std::string, std::string> loaded_libraries();
std::string host_name();

}  // namespace hvd::bench
