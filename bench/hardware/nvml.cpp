#include "bench/hardware/nvml.h"

#include <array>

#include "engine/gpu/shared_library.h"

namespace hvd::bench {
namespace {

// Values of nvmlClockType_t.
constexpr int kSm = 1;
constexpr int kMemory = 2;

int clock_mhz(int (*ask)(void*, int, unsigned*), void* device, int type) {
  unsigned mhz = 0;
  return ask != nullptr && ask(device, type, &mhz) == 0 ? static_cast<int>(mhz) : 0;
}

double watts(int (*ask)(void*, unsigned*), void* device) {
  unsigned milliwatts = 0;
  return ask != nullptr && ask(device, &milliwatts) == 0 ? milliwatts * 1e-3 : 0;
}

int number(int (*ask)(void*, unsigned*), void* device) {
  unsigned value = 0;
  return ask != nullptr && ask(device, &value) == 0 ? static_cast<int>(value) : 0;
}

void ask_links(const NvmlFunctions& nvml, void* device, BoardFacts& facts) {
  facts.pcie_generation = number(nvml.pcie_generation, device);
  facts.pcie_width = number(nvml.pcie_width, device);
  constexpr unsigned kMaxLinks = 18;  // NVML_NVLINK_MAX_LINKS
  for (unsigned link = 0; nvml.nvlink_state != nullptr && link < kMaxLinks; ++link) {
    int active = 0;
    if (nvml.nvlink_state(device, link, &active) != 0 || active == 0) continue;
    unsigned version = 0;
    if (facts.nvlinks++ == 0 && nvml.nvlink_version != nullptr && nvml.nvlink_version(device, link, &version) == 0) {
      facts.nvlink_version = static_cast<int>(version);
    }
  }
}

std::string on_off(bool known, int mode) { return !known ? "" : mode != 0 ? "on" : "off"; }

void ask_device(const NvmlFunctions& nvml, void* device, BoardFacts& facts) {
  facts.sm_mhz = clock_mhz(nvml.clock, device, kSm);
  facts.max_sm_mhz = clock_mhz(nvml.max_clock, device, kSm);
  facts.memory_mhz = clock_mhz(nvml.clock, device, kMemory);
  facts.max_memory_mhz = clock_mhz(nvml.max_clock, device, kMemory);
  facts.power_limit_watts = watts(nvml.power_limit, device);
  facts.default_power_limit_watts = watts(nvml.default_power_limit, device);
  ask_links(nvml, device, facts);
  int mode = 0;
  int pending = 0;
  facts.persistence = on_off(nvml.persistence != nullptr && nvml.persistence(device, &mode) == 0, mode);
  facts.ecc = on_off(nvml.ecc != nullptr && nvml.ecc(device, &mode, &pending) == 0, mode);
}

}  // namespace

BoardFacts board_facts(const NvmlFunctions& nvml, const std::string& uuid) {
  BoardFacts facts;
  if (nvml.init == nullptr || nvml.init() != 0) return facts;
  std::array<char, 96> text{};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80
  if (nvml.driver_version != nullptr && nvml.driver_version(text.data(), text.size()) == 0) facts.driver = text.data();
  void* device = nullptr;
  if (nvml.device_by_uuid != nullptr && nvml.device_by_uuid(uuid.c_str(), &device) == 0) {
    ask_device(nvml, device, facts);
  }
  if (nvml.shutdown != nullptr) nvml.shutdown();
  return facts;
}

BoardFacts board_facts(const std::string& uuid) {
  const std::array<std::string, 1> names{"libnvidia-ml.so.1"};  // NVIDIA's driver installs this library
  const gpu::SharedLibrary library(names);
  if (!library.loaded()) return {};
  NvmlFunctions nvml;
  library.find("nvmlInit_v2", nvml.init);
  library.find("nvmlShutdown", nvml.shutdown);
  library.find("nvmlDeviceGetHandleByUUID", nvml.device_by_uuid);
  library.find("nvmlSystemGetDriverVersion", nvml.driver_version);
  library.find("nvmlDeviceGetClockInfo", nvml.clock);
  library.find("nvmlDeviceGetMaxClockInfo", nvml.max_clock);
  library.find("nvmlDeviceGetPowerManagementLimit", nvml.power_limit);
  library.find("nvmlDeviceGetPowerManagementDefaultLimit", nvml.default_power_limit);
  library.find("nvmlDeviceGetPersistenceMode", nvml.persistence);
  library.find("nvmlDeviceGetEccMode", nvml.ecc);
  library.find("nvmlDeviceGetNvLinkState", nvml.nvlink_state);
  library.find("nvmlDeviceGetNvLinkVersion", nvml.nvlink_version);
  library.find("nvmlDeviceGetMaxPcieLinkGeneration", nvml.pcie_generation);
  library.find("nvmlDeviceGetMaxPcieLinkWidth", nvml.pcie_width);
  return board_facts(nvml, uuid);
}

}  // namespace hvd::bench
