// What the step simulator is told about a world: the step of one rank, the schedule, and what everything costs. Plain
// data; times in seconds from the start of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/types.h"
#include "engine/core/bucket_plan.h"
#include "engine/core/negotiator.h"
#include "engine/core/schedule.h"
#include "engine/sim/cost_table.h"
#include "engine/sim/noise.h"

namespace hvd::sim {

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

/// When a rank enters the next negotiation cycle.
enum class Pacing : std::uint8_t {
  kOnDemand,  ///< as soon as it has something pending; see core/pacing.h
  kTick,      ///< World::tick_seconds after the last one ended, with or without something pending; batches of several
              ///< gradients are always packed. Source: Horovod of 2017, BackgroundThreadLoop() in operations.cc
};

/// What operations cost while all ranks compute.
struct Costs {
  /// Sizes are bytes of the whole vector, of which reduce_scatter and all_gather leave or take one share per rank.
  CostTable all_reduce = {}, reduce_scatter = {}, all_gather = {};
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
  Pacing pacing = Pacing::kOnDemand;
  double tick_seconds = 5e-3;  ///< of Pacing::kTick; Horovod of 2017 slept for 5 ms
  Costs costs = {};
  double compute_factor = 1;  ///< compute time of a rank among the others, divided by that of the profile
  NoisePool noise = {};
  std::uint64_t seed = 1;
};

}  // namespace hvd::sim
