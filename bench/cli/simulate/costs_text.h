// The text that tells `hvd_bench simulate` which worlds to simulate, and what everything costs there.
// A text may come from a stranger. Pure.
//
// Words are separated by single spaces, and every line ends with a line break. Times are seconds, at most 86,400. Lines
// stand in this order; those in brackets may be absent:
//
//   hvd-costs 2                        version
//   seed N                             draw k (from 0) of every world draws with the seed N + k
//   steps N                            simulated steps of a draw, 1 to 10,000
//   block N                            successive steps of a recording that are drawn together
//   device host | stream               reductions run on the engine's thread (CPUs) or on a stream (GPUs). host takes
//                                      gradients as submitted when they are ready, and as fp32, as a run on CPUs does
//   [align N]                          gradients begin at multiples of N elements: 32 in runs on CPUs, 1 (default) in
//                                      replays
//   [node, rank F F ... for each rank] a recorded node, any number of them: compute times of successive steps, divided
//                                      by the profile's; 0.001 to 1000
//   world RANKS RANKS_PER_NODE         begins a world, one or more; at most 65,536 ranks
//   draw                               begins a draw, one or more in each world; the rest are its costs
//   [all_reduce BYTES SECONDS F F ...] sizes ascend; F: measured times divided by SECONDS, of which each collective
//                                      draws one
//   [reduce_scatter ...] [all_gather ...]  likewise, for --schedule sharded
//   [small_all_reduce ...] [small_reduce_scatter ...] [small_all_gather ...]  likewise, of messages that the engine
//                                      exchanges without a ring
//   [cycle SECONDS]                    one negotiation cycle
//   [copy SECONDS]                     of a byte into the fusion buffer, or out of it
//   [slowdown X]                       seconds by which a second of reduction delays the compute beside it, 0 to 1
//   [compute F]                        factor of all compute times
//   [common 0 | 1]                     1: all nodes play the same recorded steps
//   [shift SECONDS]                    added to every time at which a gradient is submitted or ready: a late sleep
//   end N                              number of worlds
//
// Limits: 64 MiB, 524,288 lines, 4,194,304 numbers and 65,536 draws in a text, 4 MiB in a profile, and 2e10 for ranks x
// steps x collectives of all draws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sim/world.h"

namespace hvd::bench {

constexpr std::size_t kMaxCostsBytes = std::size_t{64} << 20;

/// One draw of all that is known about a world only roughly.
struct CostsDraw {
  std::size_t line = 0;  ///< where it begins in the text
  sim::Costs costs = {};
  double compute_factor = 1;
  bool common_steps = false;
  double shift_seconds = 0;  ///< added to the times at which gradients are submitted and ready
};

struct CostsWorld {
  std::size_t line = 0;
  sim::Ranks ranks = {};
  std::vector<CostsDraw> draws = {};
};

struct CostsText {
  std::uint64_t seed = 1;
  std::size_t steps = 1;
  std::size_t align = 1;  ///< gradients begin at multiples of so many elements in the arena
  sim::Reducer reducer = sim::Reducer::kEngineThread;
  sim::NoisePool noise = {};
  std::vector<CostsWorld> worlds = {};
};

/// Errors: invalid_argument for a malformed or truncated text and for one beyond the limits, with `origin` (the file)
/// and the line.
CostsText parse_costs(std::string_view text, const std::string& origin);

}  // namespace hvd::bench
