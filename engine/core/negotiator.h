// Horovod's negotiation as a pure state machine, one per rank. The caller performs the collective that an
// Action asks for and feeds the result back; the real engine, the simulator and the lockstep tests run this
// same object. Protocol (source: Horovod horovod/common/controller.cc, behaviour; own code):
//
//   begin_cycle() ─► AllReduceBits(AND over status and cache bits) ─► on_bits()
//       any rank holds an invalid entry ─► AllReduceBits(OR over invalid bits) ─► on_bits(): erase everywhere
//       every pending tensor hit on every rank ─► CycleDone: all ranks fuse locally and identically
//       else ─► Gather(requests to rank 0) ─► on_gathered() on rank 0 ─► Broadcast(response) ─► on_broadcast()
//             ─► CycleDone
//
// The status bits are inverted so that one AND finds "any rank ...": shutdown, uncached, invalid. A rank
// that re-submits a cached name with another shape clears its "my entry is still valid" bit in the same
// exchange; without it, the others would hit and wait for ever.
//
// Rule of participation: a rank enters a cycle iff it has something pending or wants to shut down. Nothing
// can complete while some rank has nothing pending, so nobody idles in cycles and nobody deadlocks.
//
// One thread owns a Negotiator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/core/fusion.h"
#include "engine/core/request.h"
#include "engine/core/response_cache.h"

namespace hvd::core {

using Bytes = std::vector<std::byte>;

struct AllReduceBits {
  BitOp op = BitOp::kAnd;
  std::vector<std::uint64_t> words;  ///< equal length on all ranks
};
struct Gather {
  Bytes message;  ///< to rank 0, which feeds all (its own included) to on_gathered(), others call on_gathered({})
};
struct Broadcast {
  Bytes message;  ///< from rank 0; empty elsewhere. Feed what arrives to on_broadcast(), rank 0 too.
};
struct CycleDone {
  std::vector<Batch> batches;  ///< execute in this order; may be empty (somebody is not ready yet)
  bool shutdown = false;       ///< all ranks have agreed to stop: no further cycle
};
using Action = std::variant<AllReduceBits, Gather, Broadcast, CycleDone>;

struct NegotiatorOptions {
  std::size_t cache_capacity = 1024;  ///< HOROVOD_CACHE_CAPACITY
  FusionOptions fusion;
};

struct CycleStats {
  std::uint64_t cycles = 0;       ///< finished
  std::uint64_t fast_cycles = 0;  ///< all hits, no coordinator
  std::uint64_t coordinated = 0;  ///< went through rank 0
  std::uint64_t invalidated = 0;  ///< cache entries erased because of another shape, type or operation
};

/// A tensor that some ranks wait for (known on rank 0).
struct Stall {
  std::string name;
  std::vector<int> missing_ranks;
};

class Negotiator {
 public:
  Negotiator(int rank, int size, const NegotiatorOptions& options);

  /// A local tensor became ready. Errors: invalid_argument if `request.name` is already pending here.
  void submit(Request request);
  /// After this, the rank takes part in cycles until CycleDone::shutdown.
  void request_shutdown();
  [[nodiscard]] bool has_pending() const;
  [[nodiscard]] bool wants_cycle() const { return has_pending() || shutdown_requested_; }

  Action begin_cycle();
  Action on_bits(std::span<const std::uint64_t> reduced);
  /// Rank 0: one message per rank. Other ranks: empty.
  Action on_gathered(std::span<const Bytes> messages);
  Action on_broadcast(std::span<const std::byte> message);

  [[nodiscard]] const CycleStats& stats() const { return stats_; }
  /// Rank 0 only: tensors that at least one but not every rank has submitted.
  [[nodiscard]] std::vector<Stall> stalls() const;

 private:
  // Private part is the implementer's to shape.
  struct Impl;
  int rank_;
  int size_;
  NegotiatorOptions options_;
  ResponseCache cache_;
  bool shutdown_requested_ = false;
  CycleStats stats_;
};

}  // namespace hvd::core
