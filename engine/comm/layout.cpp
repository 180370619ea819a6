#include "engine/comm/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::comm {

Layout::Layout(int rank, const std::vector<int>& original_node_of, std::vector<std::string> hosts) {
  const std::size_t size = original_node_of.size();
  HVD_ASSERT(hosts.size() == size && rank >= 0 && static_cast<std::size_t>(rank) < size);
  std::map<int, int> renumbered;
  for (std::size_t r = 0; r < size; ++r) {
    const auto [entry, fresh] = renumbered.emplace(original_node_of[r], static_cast<int>(members.size()));
    if (fresh) members.emplace_back();
    std::vector<int>& node = members[static_cast<std::size_t>(entry->second)];
    node_of.push_back(entry->second);
    local_rank_of.push_back(static_cast<int>(node.size()));
    node.push_back(static_cast<int>(r));
  }
  topology.rank = rank;
  topology.size = static_cast<int>(size);
  topology.node = node_of[static_cast<std::size_t>(rank)];
  topology.nodes = static_cast<int>(members.size());
  topology.local_rank = local_rank_of[static_cast<std::size_t>(rank)];
  topology.local_size = static_cast<int>(my_node().size());
  topology.hosts = std::move(hosts);
  min_local_size = max_local_size = topology.local_size;
  for (const auto& node : members) {
    min_local_size = std::min(min_local_size, static_cast<int>(node.size()));
    max_local_size = std::max(max_local_size, static_cast<int>(node.size()));
  }
}

std::string Layout::describe(int rank) const { return rank_at(static_cast<std::size_t>(rank), topology.hosts); }

std::string Layout::describe(std::span<const int> ranks) const {
  constexpr std::size_t kNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) text += (i == 0 ? "" : ", ") + describe(ranks[i]);
  if (ranks.size() > kNamed) text += fmt::format(" and {} more", ranks.size() - kNamed);
  return text;
}

}  // namespace hvd::comm
