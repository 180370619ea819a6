#include "bench/hardware/gpu_surroundings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <numeric>

#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"

namespace hvd::bench {
namespace {

/// A reduction with less than this fraction of the link's bandwidth probably does not use the link. By comparison,
/// rings over PCIe reach about half of the link's bandwidth.
constexpr double kFarBelow = 0.25;
/// Latency and not the link's bandwidth limits a reduction of fewer than kBandwidthBytes, or of fewer than
/// kBandwidthShareBytes per rank.
constexpr double kBandwidthBytes = double{4 << 20}, kBandwidthShareBytes = double{1 << 20};

std::string_view behind(std::string_view line, std::string_view mark) {
  const std::size_t at = line.find(mark);
  return at == std::string_view::npos ? std::string_view() : line.substr(at + mark.size());
}

/// Returns the text without white space at its end. Names of plugins have several words: "AWS Libfabric".
std::string_view trimmed(std::string_view text) { return text.substr(0, text.find_last_not_of(" \t\r") + 1); }

std::string_view word(std::string_view text) { return text.substr(0, text.find_first_of(" \t\r")); }

void add_once(std::vector<std::string>& list, std::string_view text) {
  if (!text.empty() && std::find(list.begin(), list.end(), text) == list.end()) list.emplace_back(text);
}

/// Parses " [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>" and adds the adapters in it.
void add_adapters(std::vector<std::string>& adapters, std::string_view text) {
  text = text.substr(0, text.find(';'));
  for (std::size_t at = text.find('['); at != std::string_view::npos; at = text.find('[', at + 1)) {
    const std::size_t end = text.find(']', at);
    if (end == std::string_view::npos) return;
    const bool number = end > at + 1 && std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                                    text.begin() + static_cast<std::ptrdiff_t>(end),
                                                    [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number) add_once(adapters, word(text.substr(end + 1)));
  }
}

/// Returns the number at the beginning of `text`, or 0 if there is none.
double leading_number(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value > 0 ? value : 0;
}

/// Returns the GB/s of an adapter such as "mlx5_0:1/IB" or "eth0:10.0.0.1<0>", or 0 if unknown.
double adapter_rate(std::string_view adapter, const std::filesystem::path& sys) {
  const std::string name(adapter.substr(0, adapter.find(':')));
  if (name.empty() || name.find('/') != std::string::npos || name.front() == '.') return 0;
  constexpr double kBits = 8, kThousand = 1000;
  const std::string_view port = behind(adapter, ":");
  const std::string number(port.substr(0, port.find('/')));
  const double gigabits = leading_number(first_line(sys / "class/infiniband" / name / "ports" / number / "rate"));
  if (gigabits > 0) return gigabits / kBits;
  return leading_number(first_line(sys / "class/net" / name / "speed")) / kThousand / kBits;
}

/// Returns the first port of each adapter of this host.
std::vector<std::string> adapters_of_host(const std::filesystem::path& sys) {
  std::vector<std::string> adapters;
  std::error_code fault;
  for (std::filesystem::directory_iterator folder(sys / "class/infiniband", fault), end; !fault && folder != end;
       folder.increment(fault)) {
    adapters.push_back(folder->path().filename().string() + ":1");
  }
  return adapters;
}

/// Returns true if a port of this adapter of /sys/class/infiniband has a link.
bool has_link(const std::filesystem::path& adapter) {
  std::error_code fault;
  for (std::filesystem::directory_iterator port(adapter / "ports", fault), end; !fault && port != end;
       port.increment(fault)) {
    if (first_line(port->path() / "state").find("ACTIVE") != std::string::npos) return true;  // "4: ACTIVE"
  }
  return false;
}

std::string rounded(double value) { return value < 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value); }

}  // namespace

std::string NcclNetwork::text() const {
  if (name.empty()) return "unknown";
  return adapters.empty() ? name : fmt::format("{} ({})", name, fmt::join(adapters, ", "));
}

std::string NcclNetwork::paths_text() const { return fmt::format("{}", fmt::join(paths, "; ")); }

NcclNetwork parse_nccl_log(std::string_view log) {
  NcclNetwork network;
  std::vector<std::string> others, sockets;  // adapters of plugins and of InfiniBand, and of sockets
  while (!log.empty()) {
    const std::string_view line = behind(take_line(log), "NCCL INFO ");
    if (const auto name = behind(line, "Using network "); !name.empty()) network.name = trimmed(name);
    if (line.starts_with("NET/") && line.find(" : Using") != std::string_view::npos) {
      add_adapters(line.starts_with("NET/Socket ") ? sockets : others, line);
    }
    if (line.starts_with("Channel ") && line.find(" -> ") != std::string_view::npos) {
      add_once(network.paths, trimmed(behind(line, " via ")));
    }
  }
  if (!network.name.empty() && network.name != "Socket") network.adapters = others;
  if (network.name == "Socket") {  // names without addresses, which differ between hosts
    for (const std::string& socket : sockets) add_once(network.adapters, socket.substr(0, socket.find(':')));
  }
  std::sort(network.paths.begin(), network.paths.end());
  return network;
}

Link network_link(const NcclNetwork& network, int ranks_on_host, const std::filesystem::path& sys) {
  std::vector<double> rates;
  const bool listed = !network.adapters.empty() || network.name.empty() || network.name == "Socket";
  for (const std::string& adapter : listed ? network.adapters : adapters_of_host(sys)) {
    rates.push_back(adapter_rate(adapter, sys));
    if (rates.back() == 0) return {network.text(), 0};  // one unknown rate makes the sum unknown
  }
  std::sort(rates.begin(), rates.end());  // the slowest adapters first, because NCCL may choose any of them
  rates.resize(std::min(rates.size(), static_cast<std::size_t>(std::max(0, ranks_on_host))));
  return {network.text(), std::accumulate(rates.begin(), rates.end(), 0.0)};
}

std::string idle_adapters(const NcclNetwork& network, const std::filesystem::path& sys) {
  std::vector<std::string> idle;
  if (network.name != "Socket") return {};
  for (const std::string& adapter : adapters_of_host(sys)) {
    const std::string name = adapter.substr(0, adapter.find(':'));
    if (has_link(sys / "class/infiniband" / name)) idle.push_back(name);
  }
  std::sort(idle.begin(), idle.end());
  return fmt::format("{}", fmt::join(idle, ", "));
}

Link gpu_link(const BoardFacts& board) {
  // GB/s of one link in one direction, indexed by nvmlNvlinkVersion_t (1: NVLink 1.0, 2 to 6: 2.0 to 4.0, 7: 5.0).
  constexpr std::array kPerLink{0, 20, 25, 25, 25, 25, 25, 50};
  const auto version = static_cast<std::size_t>(std::max(0, board.nvlink_version));
  if (board.nvlinks > 0) {
    return {std::to_string(board.nvlinks) + " NVLinks",
            version < kPerLink.size() ? static_cast<double>(board.nvlinks * kPerLink.at(version)) : 0};
  }
  // GB/s of one lane in one direction, indexed by PCIe generation.
  constexpr std::array kPerLane{0.0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
  const auto generation = static_cast<std::size_t>(std::max(0, board.pcie_generation));
  return {fmt::format("PCIe {} x{}", generation, board.pcie_width),
          generation < kPerLane.size() ? kPerLane.at(generation) * board.pcie_width : 0};
}

std::string cpus_near(const std::string& pci_bus_id, const std::filesystem::path& sys) {
  std::string name = pci_bus_id;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.empty() || name.find('/') != std::string::npos) return {};
  return first_line(sys / "bus/pci/devices" / name / "local_cpulist");
}

bool share_processor(const std::vector<int>& left, const std::vector<int>& right) {
  return std::any_of(left.begin(), left.end(),
                     [&](int cpu) { return std::find(right.begin(), right.end(), cpu) != right.end(); });
}

std::string distance(const std::vector<int>& mine, const std::string& near) {
  const std::vector<int> theirs = parse_cpu_list(near);
  if (mine.empty() || theirs.empty()) return {};
  return share_processor(mine, theirs) ? "" : fmt::format("CPUs {}, and its GPU is near {}", cpu_list(mine), near);
}

double bus_gigabytes_per_second(int ranks, const std::vector<double>& bytes, const std::vector<double>& seconds) {
  double best = 0;
  for (std::size_t b = 0; b < std::min(bytes.size(), seconds.size()); ++b) {
    if (bytes[b] < kBandwidthBytes || bytes[b] < ranks * kBandwidthShareBytes || seconds[b] <= 0) continue;
    best = std::max(best, 2.0 * (ranks - 1) / ranks * bytes[b] / seconds[b]);
  }
  return best * 1e-9;
}

std::string bandwidth_caution(const Link& link, int ranks, const std::vector<double>& bytes,
                              const std::vector<double>& seconds) {
  const double bus = bus_gigabytes_per_second(ranks, bytes, seconds);
  if (bus <= 0 || link.gigabytes_per_second <= 0 || bus >= kFarBelow * link.gigabytes_per_second) return {};
  return fmt::format(
      "reductions alone move {} GB/s (bus bandwidth), far below the {} GB/s of {}: see nccl.network and nccl.paths in "
      "the run's facts, and try NCCL_DEBUG=INFO and nccl-tests",
      rounded(bus), rounded(link.gigabytes_per_second), link.name);
}

}  // namespace hvd::bench
