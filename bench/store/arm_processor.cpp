#include "bench/store/arm_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <system_error>
#include <utility>

#include "bench/store/host_facts.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

struct Core {
  std::string_view implementer, part, name;
};
// Cores of servers.
constexpr std::array kCores{Core{"0x41", "0xd08", "Arm Cortex-A72"},
                            Core{"0x41", "0xd0c", "Arm Neoverse-N1"},
                            Core{"0x41", "0xd40", "Arm Neoverse-V1"},
                            Core{"0x41", "0xd49", "Arm Neoverse-N2"},
                            Core{"0x41", "0xd4f", "Arm Neoverse-V2"},
                            Core{"0x41", "0xd83", "Arm Neoverse-V3AE"},
                            Core{"0x41", "0xd84", "Arm Neoverse-V3"},
                            Core{"0x41", "0xd8e", "Arm Neoverse-N3"},
                            Core{"0x43", "0x0af", "Cavium ThunderX2"},
                            Core{"0x46", "0x001", "Fujitsu A64FX"},
                            Core{"0x48", "0xd01", "HiSilicon Kunpeng 920"},
                            Core{"0xc0", "0xac3", "Ampere-1"},
                            Core{"0xc0", "0xac4", "Ampere-1a"}};

// The beginnings of vendors and products of virtual machines.
constexpr std::array<std::string_view, 8> kHypervisors{
    "Amazon EC2", "Google Compute Engine", "KVM", "OpenStack", "QEMU", "VMware", "Virtual Machine", "Xen"};

/// Returns true for "cpu0" and "cpu12", but not for "cpufreq" and "cpuidle".
bool is_processor(std::string_view folder) {
  constexpr std::string_view kPrefix = "cpu";
  if (!folder.starts_with(kPrefix) || folder.size() == kPrefix.size()) return false;
  return std::all_of(folder.begin() + kPrefix.size(), folder.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::string arm_core_name(std::string_view implementer, std::string_view part) {
  for (const Core& core : kCores) {
    if (core.implementer == implementer && core.part == part) return std::string(core.name);
  }
  return fmt::format("Arm implementer {} part {}", implementer, part);
}

ProcessorTopology kernel_topology(const fs::path& folder) {
  std::set<std::string> sockets;
  std::set<std::pair<std::string, std::string>> cores;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    if (!is_processor(entry.path().filename().string())) continue;
    const fs::path topology = entry.path() / "topology";
    const std::string socket = first_line(topology / "physical_package_id");
    const std::string core = first_line(topology / "core_id");
    constexpr std::string_view kUnknown = "-1";
    if (!socket.empty() && socket != kUnknown) sockets.insert(socket);
    if (!core.empty() && core != kUnknown) cores.emplace(socket, core);
  }
  return {static_cast<int>(sockets.size()), static_cast<int>(cores.size())};
}

std::string firmware_hypervisor(const fs::path& folder) {
  const std::string vendor = first_line(folder / "sys_vendor"), product = first_line(folder / "product_name");
  if (vendor == "Amazon EC2" && product.find(".metal") != std::string::npos) return "no";
  const bool known = std::any_of(kHypervisors.begin(), kHypervisors.end(), [&](std::string_view name) {
    return vendor.starts_with(name) || product.starts_with(name);
  });
  return known ? "yes" : "";
}

}  // namespace hvd::bench
