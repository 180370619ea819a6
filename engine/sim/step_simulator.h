// Simulates training steps of N ranks: the engine's own decisions (buckets, negotiation, fusion, pacing), on times that
// were measured or assumed. Pure: the same world gives the same steps, on every machine.
//
// Two ranks take a step with three buckets. A gradient that completes a bucket is marked ▲:
//
//   rank 0       ├─ forward, backward ▲────────▲─────────▲─┤ . . waits . . . . ├ update ┤
//   rank 1       ├─ forward, backward ───▲─────────▲────────▲─┤ . exposed . . ├ update ┤
//                                        │         │
//   collectives                          ├bucket 0┤├─ bucket 1 ─┤├─ bucket 2 ─┤
//
//  1. A collective starts when its last rank is ready and the collective before it has ended.
//  2. A rank updates when the last collective has ended, and then begins its next step without waiting for the others.
//
// All ranks execute the same collectives in the same order, and each collective needs every rank. So there are N lines
// of compute but only one line of collectives, and a step is one loop over the collectives, which takes the maximum
// over the ranks at each of them. No queue of events is needed, because ranks meet nowhere else: a collective only
// delays the compute beside it (Costs::overlap_slowdown), so the loop has all that it needs when it comes to the next
// collective.
//
// Under the negotiated schedule the loop is one over cycles. A rank comes to a cycle with all gradients that it has
// submitted. The cycle starts when the last rank has come, and agrees on the gradients that all of them have
// (negotiated_batches.h). Then their batches run as above. On a GPU the line of collectives is a stream: the engine's
// thread negotiates by the host's times of submission, and a batch waits on the stream for the device's ready times.
//
// Not modelled: a thread that wakes late, the first steps (whose cycles need the coordinator), operations with tickets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/philox.h"
#include "engine/core/pacing.h"
#include "engine/sim/negotiated_batches.h"
#include "engine/sim/world.h"

namespace hvd::sim {

/// One step, in the terms of bench/measure/decomposition.h.
struct StepResult {
  double step = 0;          ///< maximum over ranks of the time from the rank's own begin to its own end
  double stragglers = 0;    ///< mean over ranks of their wait for reductions, beyond the shortest wait
  double exposed = 0;       ///< the shortest wait over ranks, without `control`
  double control = 0;       ///< the part of the shortest wait that the control plane takes
  double overlapped = 0;    ///< mean over ranks: time in which reductions and copies ran beside compute
  double slowed = 0;        ///< mean over ranks: how long `overlapped` delayed compute
  double update = 0;        ///< mean over ranks; sharded: of one share, without gathering the weights
  std::size_t cycles = 0;   ///< negotiation cycles
  std::size_t batches = 0;  ///< buckets, or fused batches
};

/// Bytes of the smallest and of the largest message; `most` is 0 if there was none.
struct MessageSizes {
  std::size_t least = 0, most = 0;
};

/// A training run. Ranks keep their lead or delay from step to step. One thread at a time may use it.
class StepSimulator {
 public:
  /// Errors: invalid_argument for a time that is negative or not finite, gradients that are missing or in no bucket, a
  /// table without points, and those of ComputeNoise and NegotiatedBatches.
  explicit StepSimulator(World world);
  StepResult step();
  /// Returns the sizes of all messages so far: [0] by ring, or by the only algorithm; [1] those of Costs' small tables.
  [[nodiscard]] const std::array<MessageSizes, 2>& messages() const { return messages_; }

 private:
  struct Rank {
    double begin = 0;           // of the current step
    double pace = 1;            // compute time of this rank in this step, divided by the profile's
    double overlapped = 0;      // StepResult::overlapped of this rank, until now
    double control = 0;         // time in cycles, waits for other ranks included
    double wait = 0;            // for reductions, after its compute
    double end = 0;             // of the current step
    std::size_t submitted = 0;  // gradients submitted so far
  };

  void begin_step();
  void run_buckets();
  void run_cycles();
  void run_batch(const Batch& batch);
  void gather_shares();
  StepResult finish_step();
  /// Lets all ranks come to the next cycle. Returns when the last one comes, and sets `common` to the number of
  /// gradients that all ranks have submitted.
  double arrive(std::size_t agreed, std::size_t& common);
  /// Returns when `rank` comes to the next cycle, after which `agreed` gradients were agreed on.
  [[nodiscard]] double arrival(const Rank& rank, std::size_t agreed) const;
  /// A reduction or copy runs from `begin` to `end` and slows the compute of ranks that still compute.
  void overlap(double begin, double end);
  /// Returns the time of a collective. is_small: the engine exchanges such a message without a ring.
  [[nodiscard]] double duration(const CostTable& table, const CostTable& small, bool is_small, std::size_t bytes);
  [[nodiscard]] double all_reduce_seconds(std::size_t bytes);
  [[nodiscard]] double slowest_ready(std::size_t gradient) const;

  // Times at which `rank` reaches a place of its profile, given what has slowed it so far. They are exact while no
  // reduction runs. A gradient that would be ready during a reduction is ready by its end if and only if its time with
  // the whole delay is not later than the end, so asking after each reduction is enough.
  [[nodiscard]] double at(const Rank& rank, double profile_seconds) const {
    return rank.begin + rank.pace * profile_seconds + world_.costs.overlap_slowdown * rank.overlapped;
  }
  [[nodiscard]] double submit_at(const Rank& rank, std::size_t gradient) const;

  World world_;
  ComputeNoise noise_;
  Philox collective_noise_;
  std::optional<NegotiatedBatches> batches_;
  std::vector<double> factors_;  // [rank]
  std::vector<Rank> ranks_;
  std::uint64_t steps_ = 0, collectives_ = 0;

  double engine_free_ = 0;  // when the engine's thread is free
  double stream_free_ = 0;  // Reducer::kStream: when the last reduction on the stream ends
  core::CycleResult last_cycle_;
  double reduce_ = 0, copy_ = 0;
  std::array<MessageSizes, 2> messages_{};
  StepResult result_;
};

}  // namespace hvd::sim
