// Facts about a GPU from NVIDIA's management library: clocks, limits, modes. The library comes with the driver and is
// loaded at run time. If the library is missing or does not know a fact, the fact's field is empty or zero. Any thread.
#pragma once

#include <string>

namespace hvd::bench {

struct BoardFacts {
  std::string driver;  ///< "570.86.15"
  int sm_mhz = 0, max_sm_mhz = 0;
  int memory_mhz = 0, max_memory_mhz = 0;
  double power_limit_watts = 0, default_power_limit_watts = 0;
  std::string persistence, ecc;  ///< "on", "off"
  int nvlinks = 0;               ///< number of active links
  int nvlink_version = 0;        ///< nvmlNvlinkVersion_t of the first active link
  int pcie_generation = 0, pcie_width = 0;
};

/// The NVML functions that board_facts() calls, as in nvml.h (NVML API reference). They return 0 on success. Any
/// pointer to a function may be null.
struct NvmlFunctions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_uuid)(const char* uuid, void** device) = nullptr;
  int (*driver_version)(char* text, unsigned length) = nullptr;
  int (*clock)(void* device, int type, unsigned* mhz) = nullptr;
  int (*max_clock)(void* device, int type, unsigned* mhz) = nullptr;
  int (*power_limit)(void* device, unsigned* milliwatts) = nullptr;
  int (*default_power_limit)(void* device, unsigned* milliwatts) = nullptr;
  int (*persistence)(void* device, int* mode) = nullptr;
  int (*ecc)(void* device, int* now, int* pending) = nullptr;
  int (*nvlink_state)(void* device, unsigned link, int* active) = nullptr;
  int (*nvlink_version)(void* device, unsigned link, unsigned* version) = nullptr;
  int (*pcie_generation)(void* device, unsigned* generation) = nullptr;  ///< highest that both GPU and slot support
  int (*pcie_width)(void* device, unsigned* lanes) = nullptr;            ///< widest that both GPU and slot support
};

/// Returns the facts of the GPU with this UUID ("GPU-...").
BoardFacts board_facts(const NvmlFunctions& nvml, const std::string& uuid);
/// Calls board_facts() with the functions of libnvidia-ml.so.1, if that library exists.
BoardFacts board_facts(const std::string& uuid);

}  // namespace hvd::bench
