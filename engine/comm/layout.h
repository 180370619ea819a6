// The placement of ranks on nodes, as the collectives need it. Pure data.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace hvd::comm {

struct Layout {
  /// `node_of[rank]` may be any number; nodes are renumbered in the order of their lowest ranks.
  Layout(int rank, const std::vector<int>& node_of, std::vector<std::string> hosts);

  Topology topology;
  std::vector<int> node_of;               ///< [rank]
  std::vector<int> local_rank_of;         ///< [rank]
  std::vector<std::vector<int>> members;  ///< [node][local rank] -> rank
  int min_local_size = 1;                 ///< ranks of the node with the fewest ranks
  int max_local_size = 1;                 ///< ranks of the node with the most ranks

  [[nodiscard]] const std::vector<int>& my_node() const { return members[static_cast<std::size_t>(topology.node)]; }
  /// "rank 3 (host b)".
  [[nodiscard]] std::string describe(int rank) const;
  /// "rank 3 (host b), rank 4 (host b)"; names the first eight and counts the others.
  [[nodiscard]] std::string describe(std::span<const int> ranks) const;
};

}  // namespace hvd::comm
