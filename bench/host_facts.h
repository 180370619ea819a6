// What /proc, /sys and the C library say about this process and host. Nothing here fails: what cannot be read
// is empty or zero. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::bench {

/// First line of a small file, trimmed; empty if it cannot be read.
std::string first_line(const std::filesystem::path& file);

/// /proc/cpuinfo of the first processor.
struct Processor {
  std::string model;  ///< "Intel(R) Xeon(R) Platinum 8480+"
  std::string microcode;
  std::vector<std::string> flags;
  int sockets = 0;  ///< of the host
  int cores = 0;    ///< physical, of the host
  int hardware_threads = 0;
  double base_mhz = 0;  ///< as /proc/cpuinfo has it now
  [[nodiscard]] bool has(std::string_view flag) const;
};
Processor processor();
/// For tests: the same from text.
Processor parse_cpuinfo(std::string_view cpuinfo);

/// Bytes of the last-level cache that the first processor has a part in; 0 if unknown. As the kernel lists it in
/// `folder`, else as the C library does, whose figure is that of a whole socket on some processors.
std::size_t last_level_cache(const std::filesystem::path& folder = "/sys/devices/system/cpu/cpu0/cache");

/// Processors that this process may run on, ascending.
std::vector<int> affinity();
/// {0,1,2,5} is "0-2,5".
std::string cpu_list(const std::vector<int>& cpus);

struct Memory {
  std::int64_t total_bytes = 0;      ///< of the host
  std::int64_t available_bytes = 0;  ///< to this process now: the host's, or less where a cgroup says so
  std::int64_t limit_bytes = 0;      ///< of the cgroup; 0: none
};
Memory memory();

/// Value of "Key:  123 kB" in /proc/<file>, in bytes; 0 if absent.
std::int64_t proc_bytes(const char* file, std::string_view key);

/// Processors' worth of time that the cgroup allows ("2", "0.50"); empty: no quota. Affinity does not show it:
/// threads beyond it are stopped for parts of every tenth of a second.
std::string cpu_quota();
/// Pure: of the text of cpu.max ("200000 100000").
std::string parse_cpu_max(std::string_view text);

/// "performance" and the like of CPU 0; empty where there is no frequency control (most virtual machines).
std::string governor();
/// "docker", "podman", "apptainer", ...; empty outside a container as far as can be seen.
std::string container();
/// Shared libraries of interest in this process, by short name: {"onednn": "/usr/lib/.../libdnnl.so.2.6"}.
std::map<std::string, std::string> loaded_libraries();
std::string host_name();

}  // namespace hvd::bench
