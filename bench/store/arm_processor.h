// Facts about 64-bit Arm processors that /proc/cpuinfo does not have: their names, sockets and cores, and whether the
// host is a virtual machine. No function fails: what cannot be read is empty or zero. Any thread may call.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace hvd::bench {

/// Returns the name of a core by "CPU implementer" and "CPU part" of /proc/cpuinfo: ("0x41", "0xd4f") is "Arm
/// Neoverse-V2". Returns "Arm implementer 0x41 part 0xfff" for a part that this program does not know. Pure.
/// Source: util-linux, sys-utils/lscpu-arm.c; Linux, arch/arm64/include/asm/cputype.h.
std::string arm_core_name(std::string_view implementer, std::string_view part);

struct ProcessorTopology {
  int sockets = 0, cores = 0;  ///< of the whole host; 0: unknown
};
/// Counts the sockets and cores of the processors that are online. `folder` has the kernel's cpu0, cpu1, ...
ProcessorTopology kernel_topology(const std::filesystem::path& folder = "/sys/devices/system/cpu");

/// Returns "yes" if the firmware's tables in `folder` are those of a known hypervisor, "no" for a bare-metal instance
/// of Amazon EC2, else an empty string: Arm processors have no flag for it.
/// Source of the vendors: systemd, src/basic/virt.c.
std::string firmware_hypervisor(const std::filesystem::path& folder = "/sys/class/dmi/id");

}  // namespace hvd::bench
