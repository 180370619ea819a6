#include "bench/world/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::bench {

CoreSet available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {  // fails if there are more cores than a cpu_set_t holds
    return CoreSet(std::max(1U, std::thread::hardware_concurrency()), true);
  }
  CoreSet cores;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    cores.resize(cpu + 1, false);
    cores[cpu] = true;
  }
  return cores;
}

CoreShare share_cores(std::span<const CoreSet> cores, std::span<const int> nodes, int threads) {
  HVD_ASSERT(!cores.empty() && cores.size() == nodes.size());
  std::map<int, std::vector<int>> users;  // [node][cpu]: number of ranks that may use the cpu
  std::map<int, int> ranks;               // [node]: number of ranks
  for (std::size_t r = 0; r < cores.size(); ++r) {
    std::vector<int>& host = users[nodes[r]];
    host.resize(std::max(host.size(), cores[r].size()), 0);
    for (std::size_t cpu = 0; cpu < cores[r].size(); ++cpu) host[cpu] += cores[r][cpu] ? 1 : 0;
    ++ranks[nodes[r]];
  }
  double smallest = HUGE_VAL;
  for (std::size_t r = 0; r < cores.size(); ++r) {
    double share = 0;
    for (std::size_t cpu = 0; cpu < cores[r].size(); ++cpu) {
      if (cores[r][cpu]) share += 1.0 / users[nodes[r]][cpu];
    }
    smallest = std::min(smallest, share);
  }
  CoreShare out;
  out.threads = threads > 0 ? threads : std::max(1, static_cast<int>(std::floor(smallest + 1e-9)));
  out.spare_core = true;
  out.ranks_at_once = std::numeric_limits<int>::max();
  for (const auto& [node, used] : users) {
    const auto available = static_cast<int>(used.size()) - static_cast<int>(std::count(used.begin(), used.end(), 0));
    out.spare_core = out.spare_core && available > ranks[node] * out.threads;
    out.oversubscribed = out.oversubscribed || available < ranks[node] * out.threads;
    out.ranks_at_once = std::min(out.ranks_at_once, std::max(1, available / out.threads));
  }
  return out;
}

std::string cores_message() {
  std::string mine;
  for (const bool available : available_cores()) mine += available ? '1' : '0';
  return mine;
}

CoreShare share_of_messages(std::span<const comm::Bytes> all, std::span<const std::string> hosts, int threads) {
  std::vector<CoreSet> cores;
  std::vector<int> nodes;
  for (std::size_t r = 0; r < all.size(); ++r) {
    CoreSet set;
    for (const std::byte cpu : all[r]) set.push_back(static_cast<char>(cpu) == '1');
    cores.push_back(std::move(set));
    nodes.push_back(static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[r]) - hosts.begin()));
  }
  return share_cores(cores, nodes, threads);
}

}  // namespace hvd::bench
