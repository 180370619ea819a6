// What the step simulator is told about a world: the step of one rank, the schedule, what everything costs, and how the
// compute times of ranks vary. Plain data, and pure functions that turn it into times; times in seconds from the start
// of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "engine/core/bucket_plan.h"
#include "engine/core/negotiator.h"
#include "engine/core/schedule.h"

namespace hvd::sim {

struct CostPoint {
  std::size_t bytes = 0;             ///< size of the whole vector, above 0
  double seconds = 0;                ///< typical time of the collective
  std::vector<double> factors = {};  ///< measured times divided by `seconds`; empty: the time is always `seconds`
};

/// Time is linear in bytes between two points, which is exact wherever a collective takes a latency plus a time per
/// byte. Below the first point the time is that of the first point, the latency. Beyond the last point it goes on with
/// the slope of the last two points. Times between two points lie between theirs, so a table is as monotone as its
/// points: a choice of another algorithm may make a larger vector faster, and stands as two points side by side.
class CostTable {
 public:
  CostTable() = default;
  /// Errors: invalid_argument if there is no point, if sizes do not ascend, or if a time or factor is negative or not
  /// finite.
  explicit CostTable(std::vector<CostPoint> points);

  /// Call only if the table has points. Never negative.
  [[nodiscard]] double seconds(std::size_t bytes) const;
  /// Returns one of the factors of the point whose size is nearest to `bytes` by ratio. `draw` in [0, 1) chooses it.
  [[nodiscard]] double factor(std::size_t bytes, double draw) const;
  [[nodiscard]] bool empty() const { return points_.empty(); }

 private:
  [[nodiscard]] std::size_t point_after(std::size_t bytes) const;

  std::vector<CostPoint> points_;
};

// How the compute time of simulated ranks varies: as it did on recorded nodes. The same seed gives the same factors.
//
// Ranks of one node share its memory, its power and its neighbours, and a slow node stays slow. Independent factors for
// each rank and step would average out and promise too little waiting. So a simulated node is one of the recorded nodes
// for good, and its ranks play blocks of successive steps of this node together:
//
//   recorded node 1, rank 0   1.00 1.02 0.99 | 1.00 1.31 1.28 | 1.01 ...
//                    rank 1   1.01 1.01 1.00 | 1.02 1.30 1.29 | 1.00 ...      a slow spell hits both ranks
//                                              └── a block ──┘
//   simulated node 7 is node 1 and draws a block for steps 0 to 2, another one for steps 3 to 5, ...

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

/// A gradient, in the order of the arena, which is also the order in which every rank submits gradients.
struct Gradient {
  std::size_t offset = 0;     ///< start in the arena, in elements
  std::size_t count = 0;      ///< number of elements
  double submit_seconds = 0;  ///< when the host reports it to the engine
  double ready_seconds = 0;   ///< when it is computed: on a CPU at submit_seconds, on a GPU later
};

/// The compute of one step of one rank, without any communication.
struct StepProfile {
  DataType dtype = DataType::kF32;  ///< of the gradients that are reduced
  std::vector<Gradient> gradients = {};
  double backward_end_seconds = 0;
  double update_seconds = 0;  ///< duration of the update of all weights
};

/// Where reductions run.
enum class Reducer : std::uint8_t {
  kEngineThread,  ///< CPU: on the engine's thread, which starts no other work meanwhile
  kStream,        ///< GPU: on a stream; the engine's thread enqueues them and goes on
};

/// What operations cost while all ranks compute.
struct Costs {
  /// Sizes are bytes of the whole vector, of which reduce_scatter and all_gather leave or take one share per rank.
  CostTable all_reduce = {}, reduce_scatter = {}, all_gather = {};
  /// Costs of small messages: between nodes the engine exchanges them without a ring (engine/base/thresholds.h). If
  /// such a table has no points, small messages take the time of the table above.
  CostTable small_all_reduce = {}, small_reduce_scatter = {}, small_all_gather = {};
  /// [bucket]: measured times of the reductions by bucket; used instead of the tables unless empty.
  std::vector<double> bucket_seconds = {};
  double cycle_seconds = 0;          ///< one negotiation cycle without the coordinator
  double copy_seconds_per_byte = 0;  ///< into the fusion buffer, or out of it
  /// Every second in which a reduction or a copy runs beside the compute of a rank delays this compute by so many
  /// seconds. 0: none; 1: the compute stands still, as on a processor whose every core computes.
  double overlap_slowdown = 0;
};

struct World {
  Ranks ranks = {};
  StepProfile profile = {};
  Schedule schedule = Schedule::kStatic;
  std::vector<core::Bucket> buckets = {};    ///< of the static and the sharded schedule
  core::NegotiatorOptions negotiation = {};  ///< of the negotiated schedule
  Reducer reducer = Reducer::kEngineThread;
  Costs costs = {};
  double compute_factor = 1;  ///< compute time of a rank among the others, divided by that of the profile
  NoisePool noise = {};
  std::uint64_t seed = 1;
};

}  // namespace hvd::sim
