// Facts around a rank's GPU that decide how fast ranks reduce: the processors near the GPU, its links, the network that
// NCCL chose, and whether the rank runs on a suitable processor. The readers never fail: a fact that cannot be read is
// empty or zero, and causes no message.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/hardware/nvml.h"

namespace hvd::bench {

/// The network, as NCCL logs it with NCCL_DEBUG=INFO. Sources of the log's texts: NCCL 2.18 to 2.30, src/init.cc
/// ("Using network"), src/transport/net_ib*, net_socket.cc ("NET/IB : Using"), and the transports ("via").
struct NcclNetwork {
  std::string name;                   ///< "IB", "Socket", or the name of a plugin; empty: unknown
  std::vector<std::string> adapters;  ///< such as "mlx5_0:1/IB", "eth0"
  std::vector<std::string> paths;     ///< to peers, each once: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"
  /// Returns the network and its adapters, "IB (mlx5_0:1/IB, mlx5_1:1/IB)", or "unknown".
  [[nodiscard]] std::string text() const;
  /// Returns the paths, "P2P/CUMEM; NET/IB/0"; empty if no path is known.
  [[nodiscard]] std::string paths_text() const;
};
/// Reads the network from NCCL's log. Ignores lines that do not come from NCCL. Pure.
NcclNetwork parse_nccl_log(std::string_view log);

/// A link to other ranks. The rate is that of one direction.
struct Link {
  std::string name;
  double gigabytes_per_second = 0;  ///< 0: unknown
};
/// Returns the network as a link. Its rate is the sum of the rates of the slowest adapters that NCCL lists, one adapter
/// per rank of this host, because a rank may use only one adapter. If a plugin lists no adapters (AWS Libfabric), these
/// are all adapters of the host in /sys/class/infiniband. `sys`: the folder /sys.
Link network_link(const NcclNetwork& network, int ranks_on_host, const std::filesystem::path& sys = "/sys");
/// Returns the adapters of /sys/class/infiniband that have a link, "mlx5_0, mlx5_1", if NCCL uses sockets instead of
/// them; otherwise "". These are adapters for InfiniBand, RoCE and EFA.
std::string idle_adapters(const NcclNetwork& network, const std::filesystem::path& sys = "/sys");
/// Returns NVLink if an NVLink is active, otherwise PCIe. Pure.
Link gpu_link(const BoardFacts& board);

/// Returns the kernel's list of processors near the PCI device ("0000:1b:00.0", as CUDA spells it).
std::string cpus_near(const std::string& pci_bus_id, const std::filesystem::path& sys = "/sys");
/// Returns true if the lists have a processor in common. Pure.
bool share_processor(const std::vector<int>& left, const std::vector<int>& right);
/// Returns "CPUs 0-15, and its GPU is near 64-127" if `near`, a list from cpus_near(), contains no processor of `mine`;
/// otherwise "". Pure.
std::string distance(const std::vector<int>& mine, const std::string& near);

/// Returns a caution of one line if reductions in a world of `ranks` are far slower than `link`. Returns "" if they are
/// not far slower, or if too little is known. `bytes` and `seconds` are indexed by bucket; each bucket was reduced
/// alone. Pure.
std::string bandwidth_caution(const Link& link, int ranks, const std::vector<double>& bytes,
                              const std::vector<double>& seconds);
/// Returns the bus bandwidth of the fastest bucket, as in nccl-tests: 2 (n - 1) / n x bytes / seconds. Pure.
double bus_gigabytes_per_second(int ranks, const std::vector<double>& bytes, const std::vector<double>& seconds);

}  // namespace hvd::bench
