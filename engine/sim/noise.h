// How the compute time of simulated ranks varies: as it did on recorded nodes. Pure: the same seed gives the same
// factors.
//
// Ranks of one node share its memory, its power and its neighbours, and a slow node stays slow. Independent factors for
// each rank and step would average out and promise too little waiting. So a simulated node is one of the recorded nodes
// for good, and its ranks play blocks of successive steps of this node together:
//
//   recorded node 1, rank 0   1.00 1.02 0.99 | 1.00 1.31 1.28 | 1.01 ...
//                    rank 1   1.01 1.01 1.00 | 1.02 1.30 1.29 | 1.00 ...      a slow spell hits both ranks
//                                              └── a block ──┘
//   simulated node 7 is node 1 and draws a block for steps 0 to 2, another one for steps 3 to 5, ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hvd::sim {

/// Streams of Philox(seed) from which the simulator draws: which recorded node a node plays, the factors of
/// collectives, and, from kBlockStream on, the blocks of each node.
inline constexpr std::uint64_t kNodeStream = 0, kCollectiveStream = 1, kBlockStream = 2;

/// Compute times of the ranks of one node, divided by those of the profile. [rank of the node][step]
using NodeFactors = std::vector<std::vector<double>>;

struct NoisePool {
  std::vector<NodeFactors> nodes = {};  ///< recorded nodes; empty: no noise
  std::size_t block_steps = 10;         ///< successive steps that are drawn together
  /// All simulated nodes play the same steps, so that what slowed all recorded nodes at once does so here, too.
  bool common_steps = false;
};

/// How many ranks there are, and how many of them are on a node. The last node may have fewer.
struct Ranks {
  int count = 1;
  int per_node = 1;
};

class ComputeNoise {
 public:
  /// Errors: invalid_argument if a recorded node has fewer ranks than a simulated one, if the series of a node have no
  /// steps or differ in length, or if a factor is not positive and finite.
  ComputeNoise(NoisePool pool, Ranks ranks, std::uint64_t seed);
  /// Writes the factor of each rank in step `step`. `factors` has Ranks::count elements.
  void draw(std::uint64_t step, std::span<double> factors) const;

 private:
  NoisePool pool_;
  std::size_t ranks_per_node_;
  std::uint64_t seed_;
  std::vector<std::size_t> recorded_;  // [simulated node]: the recorded node that it plays
};

}  // namespace hvd::sim
