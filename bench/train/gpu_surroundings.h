// Facts around a rank's GPU that decide how fast ranks reduce: the processors near the GPU, its links, the network that
// NCCL chose, and whether the rank runs on a suitable processor. The readers never fail: a fact that cannot be read is
// empty or zero, and causes no message.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/train/nvml.h"

namespace hvd::bench {

/// The network, as NCCL logs it with NCCL_DEBUG=INFO. Source: NCCL 2.18 to 2.30, src/init.cc ("Using network"),
/// src/transport/net_ib*, net_socket.cc ("NET/IB : Using"), and the transports ("via").
struct NcclNetwork {
  std::string name;                   ///< "IB", "Socket", or the name of a plugin; empty: unknown
  std::vector<std::string> adapters;  ///< "mlx5_0:1/IB", "eth0"
  std::vector<std::string> paths;     ///< to peers, each once: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"
  /// "IB (mlx5_0:1/IB, mlx5_1:1/IB)", "unknown".
  [[nodiscard]] std::string text() const;
  /// "P2P/CUMEM; NET/IB/0"; empty if no path is known.
  [[nodiscard]] std::string paths_text() const;
};
/// Pure. Ignores lines that do not come from NCCL.
NcclNetwork parse_nccl_log(std::string_view log);

/// A link to other ranks, in one direction.
struct Link {
  std::string name;
  double gigabytes_per_second = 0;  ///< 0: unknown
};
/// Sum over the slowest of the adapters that NCCL lists, one per rank of this host, because a rank may use only one.
/// `sys`: /sys.
Link network_link(const NcclNetwork& network, int ranks_on_host, const std::filesystem::path& sys = "/sys");
/// NVLink if a link is active, else PCIe. Pure.
Link gpu_link(const BoardFacts& board);

/// Returns the kernel's list of processors near the PCI device ("0000:1b:00.0", as CUDA spells it).
std::string cpus_near(const std::string& pci_bus_id, const std::filesystem::path& sys = "/sys");
/// If none of `mine` is in `near`, returns "CPUs 0-15, and its GPU is near 64-127"; else "". Pure.
std::string distance(const std::vector<int>& mine, const std::string& near);

/// Returns one line if a reduction in a world of `ranks` is far slower than `link`; "" if it is not, or if too little
/// is known. `bytes` and `seconds`: [bucket], each reduced alone. Pure.
std::string bandwidth_caution(const Link& link, int ranks, const std::vector<double>& bytes,
                              const std::vector<double>& seconds);
/// Bus bandwidth of the bucket that was reduced fastest, as in nccl-tests: 2 (n - 1) / n x bytes / seconds. Pure.
double bus_gigabytes_per_second(int ranks, const std::vector<double>& bytes, const std::vector<double>& seconds);

}  // namespace hvd::bench
