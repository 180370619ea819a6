#include "bench/hardware/gpu_choice.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "bench/hardware/gpu_surroundings.h"
#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"
#include "bench/world/cores.h"
#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

/// Writes the processors of a rank, the names of its GPUs, and the processors near each GPU, one line each. There are
/// no names if the GPUs are not in the order of their bus addresses.
std::string message_of(const gpu::DeviceList& list, const std::vector<int>& cpus, const std::filesystem::path& sys) {
  const bool ordered = std::is_sorted(
      list.devices.begin(), list.devices.end(),
      [](const gpu::Device& left, const gpu::Device& right) { return left.pci_bus_id < right.pci_bus_id; });
  std::string names, near;
  for (const gpu::Device& device : list.devices) {
    if (ordered) names += device.uuid + " ";
    near += cpus_near(device.pci_bus_id, sys) + "\n";
  }
  return cpu_list(cpus) + "\n" + names + "\n" + near;
}

/// What the ranks of one host see.
struct HostView {
  std::vector<std::vector<int>> cpus;     // [local rank]
  std::vector<std::string_view> visible;  // [local rank] names and processors of the GPUs, as in message_of()
};

std::vector<int> choose_on_host(const HostView& host) {
  const bool equal = std::all_of(host.visible.begin(), host.visible.end(),
                                 [&](std::string_view theirs) { return theirs == host.visible.front(); });
  if (equal && !host.visible.front().starts_with('\n')) {
    std::string_view lines = host.visible.front();
    static_cast<void>(take_line(lines));
    std::vector<std::vector<int>> gpus;
    while (!lines.empty()) gpus.push_back(parse_cpu_list(take_line(lines)));
    return assign_gpus(host.cpus, gpus);
  }
  std::vector<int> chosen;
  for (const std::string_view theirs : host.visible) {
    const auto gpus = std::max<std::ptrdiff_t>(1, std::count(theirs.begin(), theirs.end(), '\n') - 1);
    chosen.push_back(static_cast<int>(static_cast<std::ptrdiff_t>(chosen.size()) % gpus));
  }
  return chosen;
}

/// Returns the index of each rank's GPU, [rank].
std::vector<int> choose_all(const std::vector<comm::Bytes>& messages, const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  texts.reserve(messages.size());
  for (const comm::Bytes& message : messages) texts.push_back(comm::text_of(message));
  std::vector<int> chosen(texts.size());
  for (const HostRanks& host : by_host(names)) {
    HostView view;
    for (const int rank : host.ranks) {
      std::string_view text = texts[static_cast<std::size_t>(rank)];
      view.cpus.push_back(parse_cpu_list(take_line(text)));
      view.visible.push_back(text);
    }
    const std::vector<int> theirs = choose_on_host(view);
    for (std::size_t i = 0; i < theirs.size(); ++i) chosen[static_cast<std::size_t>(host.ranks[i])] = theirs[i];
  }
  return chosen;
}

}  // namespace

std::vector<int> assign_gpus(const std::vector<std::vector<int>>& ranks, const std::vector<std::vector<int>>& gpus) {
  HVD_ASSERT(!gpus.empty());
  constexpr int kNone = -1;
  std::vector<int> gpu_of(ranks.size(), kNone), rank_of(gpus.size(), kNone);
  const auto give = [&](std::size_t rank, std::size_t gpu) {
    gpu_of[rank] = static_cast<int>(gpu);
    rank_of[gpu] = static_cast<int>(rank);
  };
  if (ranks.size() > gpus.size()) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) give(rank, rank % gpus.size());
    return gpu_of;
  }
  const auto near = [&](std::size_t rank, std::size_t gpu) { return share_processor(ranks[rank], gpus[gpu]); };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (near(rank, rank)) give(rank, rank);
  }
  std::vector<bool> tried;
  // Gives the rank a near GPU, if need be that of a rank for which this function finds another near GPU.
  const std::function<bool(std::size_t)> place = [&](std::size_t rank) {
    for (const bool free : {true, false}) {
      for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
        if ((rank_of[gpu] == kNone) != free || tried[gpu] || !near(rank, gpu)) continue;
        tried[gpu] = true;
        if (!free && !place(static_cast<std::size_t>(rank_of[gpu]))) continue;
        give(rank, gpu);
        return true;
      }
    }
    return false;
  };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    tried.assign(gpus.size(), false);
    if (gpu_of[rank] == kNone) place(rank);
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {  // ranks without a near GPU
    if (gpu_of[rank] == kNone && rank_of[rank] == kNone) give(rank, rank);
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto free = std::find(rank_of.begin(), rank_of.end(), kNone);
    if (gpu_of[rank] == kNone) give(rank, static_cast<std::size_t>(free - rank_of.begin()));
  }
  return gpu_of;
}

int choose_gpu(comm::Communicator& host, const gpu::DeviceList& list, const std::vector<int>& cpus, Deadline deadline,
               const std::filesystem::path& sys) {
  HVD_ASSERT(!list.devices.empty());
  const std::string mine = message_of(list, cpus, sys);
  const std::vector<comm::Bytes> all = host.control().gather(std::as_bytes(std::span(mine)), deadline);
  std::vector<int> chosen;
  if (host.topology().rank == 0) chosen = choose_all(all, host.topology().hosts);
  const comm::Bytes agreed = host.control().broadcast(std::as_bytes(std::span(chosen)), 0, deadline);
  chosen.resize(static_cast<std::size_t>(host.topology().size));
  HVD_ASSERT(agreed.size() == chosen.size() * sizeof(int));
  std::memcpy(chosen.data(), agreed.data(), agreed.size());
  return chosen[static_cast<std::size_t>(host.topology().rank)];
}

}  // namespace hvd::bench
