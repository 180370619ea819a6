// The surroundings of a rank's GPU, which decide how fast ranks reduce: the processors near it, its links, the network
// that NCCL chose, and whether the rank's place fits them. Readers never fail: what cannot be read is empty or zero,
// and nothing is said about it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/nvml.h"

namespace hvd::bench {

/// The network that NCCL names with NCCL_DEBUG=INFO. Source: NCCL 2.18 to 2.30, src/init.cc ("Using network"),
/// src/transport/net_ib*, net_socket.cc ("NET/IB : Using"), and the transports ("via").
struct NcclNetwork {
  std::string name;                   ///< "IB", "Socket", or a plugin's; empty: unknown
  std::vector<std::string> adapters;  ///< "mlx5_0:1/IB", "eth0"
  std::vector<std::string> paths;     ///< to peers: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"; each once
  /// "IB (mlx5_0:1/IB, mlx5_1:1/IB)", "unknown".
  [[nodiscard]] std::string text() const;
  /// "P2P/CUMEM; NET/IB/0"; empty: none is known.
  [[nodiscard]] std::string paths_text() const;
};
/// Pure. Lines that are none of NCCL's are passed over.
NcclNetwork parse_nccl_log(std::string_view log);

/// In one direction.
struct Link {
  std::string name;
  double gigabytes_per_second = 0;  ///< 0: unknown
};
/// As many of the adapters that NCCL lists as ranks are on this host, the slowest first: a rank may use one only.
/// `sys`: /sys.
Link network_link(const NcclNetwork& network, int ranks_on_host, const std::filesystem::path& sys = "/sys");
/// NVLink where one is active, else PCIe. Pure.
Link gpu_link(const BoardFacts& board);

/// "0-3,8" is {0,1,2,3,8}; empty if the text is something else. Pure.
std::vector<int> parse_cpu_list(std::string_view text);
/// The processors near the PCI device ("0000:1b:00.0", as CUDA spells it), as the kernel lists them.
std::string cpus_near(const std::string& pci_bus_id, const std::filesystem::path& sys = "/sys");
/// Where none of `mine` is among `near`: "CPUs 0-15, and its GPU is near 64-127". Pure.
std::string distance(const std::vector<int>& mine, const std::string& near);

/// One line, if a reduction in a world of `ranks` moves data far slower than `link`; empty: it does not, or too little
/// is known. `bytes` and `seconds` are [bucket], reduced with nothing beside them. Pure.
std::string bandwidth_caution(const Link& link, int ranks, const std::vector<double>& bytes,
                              const std::vector<double>& seconds);
/// Bus bandwidth of the bucket that was reduced fastest, as nccl-tests count it: 2 (n - 1) / n bytes per second. Pure.
double bus_gigabytes_per_second(int ranks, const std::vector<double>& bytes, const std::vector<double>& seconds);

}  // namespace hvd::bench
