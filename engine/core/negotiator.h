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
// A second word of the exchange is a digest of options and cache history beside its complement, so that the
// same AND tells ranks whose thresholds or caches differ, rather than let them fuse differently.
//
// Shutdown: once some rank has announced it, the OR also carries every entry that is pending and not agreed,
// so that rank 0 learns of all that is pending. A tensor that a stopped rank has not submitted fails on the
// ranks that hold it. The last cycle is the one in which every rank has announced its shutdown.
//
// Rule of participation: a rank enters a cycle iff it has something pending or wants to shut down. Nothing
// can complete while some rank has nothing pending, so nobody idles in cycles and nobody deadlocks.
//
// One thread owns a Negotiator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
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
  /// Execute in this order; may be empty (somebody is not ready yet). The same on all ranks but for the tags, with one
  /// exception: what fails because a rank shut down is listed only on the ranks that hold it. The names can be read
  /// until the next begin_cycle() or the Negotiator's end.
  std::vector<Batch> batches;
  bool shutdown = false;  ///< all ranks have agreed to stop: no further cycle
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

class Coordinator;
struct Response;

/// Errors of the on_*() methods: invalid_argument for a corrupt message and for what this rank alone can see, mismatch
/// when ranks have other options or other caches. After one, this rank must leave the world: the negotiation cannot go
/// on.
class Negotiator {
 public:
  Negotiator(int rank, int size, const NegotiatorOptions& options);
  ~Negotiator();
  Negotiator(Negotiator&&) noexcept;
  Negotiator& operator=(Negotiator&&) noexcept;

  /// Between cycles, with the same on all ranks: a rank that has another meets a mismatch in its next cycle.
  void set_fusion(const FusionOptions& fusion);
  /// A local tensor became ready. In the middle of a cycle, too: it takes part in the next one. Returns where the cache
  /// holds this very request, for submit_cached(); nullopt if it does not.
  /// Errors: invalid_argument if `request.name` is already pending here, if its shape makes no sense, or
  /// after request_shutdown().
  std::optional<CachedAt> submit(const Request& request, Tag tag = 0);
  /// The same for a request that submit() has found at `at`, in a few nanoseconds. Returns false, and does nothing, if
  /// the cache has dropped or replaced the entry: then submit() it. Errors: those of submit().
  bool submit_cached(const CachedAt& at, Tag tag = 0);
  /// After this, the rank takes part in cycles until CycleDone::shutdown.
  void request_shutdown() { shutdown_requested_ = true; }
  [[nodiscard]] bool has_pending() const { return pending_count() > 0; }
  [[nodiscard]] std::size_t pending_count() const { return held_count_ + uncached_.size(); }
  [[nodiscard]] bool wants_cycle() const { return !finished_ && (has_pending() || shutdown_requested_); }
  /// Makes the next cycle tell rank 0 about everything that is pending here, cached or not, so that stalls()
  /// there can name it. For a caller that has waited too long, between cycles; costs the cache entries
  /// concerned.
  void surface_pending();

  Action begin_cycle();
  Action on_bits(std::span<const std::uint64_t> reduced);
  /// Rank 0: one message per rank. Other ranks: empty.
  Action on_gathered(std::span<const Bytes> messages);
  Action on_broadcast(std::span<const std::byte> message);

  [[nodiscard]] const CycleStats& stats() const { return stats_; }
  [[nodiscard]] const ResponseCache& cache() const { return cache_; }
  /// Rank 0 only: tensors that at least one but not every rank has submitted, as far as rank 0 was told:
  /// those that all ranks hit in the cache are not among them, see surface_pending().
  [[nodiscard]] std::vector<Stall> stalls() const;

 private:
  enum class Phase : std::uint8_t { kIdle, kBits, kInvalidBits, kGather, kBroadcast };
  struct Uncached {
    Request request;
    Tag tag = 0;
    bool sent = false;
  };
  /// What finish() has found to be agreed, in order. Arrays of equal length.
  struct Agreed {
    std::vector<FusionItem> items;
    std::vector<std::string_view> names;
    std::vector<Tag> tags;
    std::vector<std::vector<std::int64_t>> rows;  // of the all_gathers alone, in their order
  };

  [[nodiscard]] std::uint64_t digest() const;
  void check_open(const std::string& name) const;
  [[noreturn]] void already_pending(std::string_view name) const;
  [[nodiscard]] bool holds(std::size_t bit) const;
  /// A tensor whose name is cached becomes pending. `other`: the request, unless it equals the cache entry.
  void hold(std::size_t bit, Tag tag, std::optional<Request> other);
  /// Stops holding the tensor at `bit` and returns it.
  [[nodiscard]] Uncached take(std::size_t bit);
  /// The entry at `bit` is about to go: moves a tensor that is held there to uncached_.
  void forget(std::size_t bit);
  void miss(Uncached&& pending);
  Action on_status(std::span<const std::uint64_t> reduced);
  Action after_bits();
  Action finish(std::vector<Response> responses);
  void take_agreed_bits(Agreed& agreed);
  /// Adds what rank 0 agreed to; returns what failed.
  std::vector<Batch> take_responses(std::vector<Response> responses, Agreed& agreed);
  /// Returns true if rank 0's answer is one to what this rank asked.
  [[nodiscard]] bool answers(const Response& response, const Request& own) const;

  int rank_;
  int size_;
  NegotiatorOptions options_;
  ResponseCache cache_;
  std::uint64_t options_digest_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0

  // Pending tensors: each is either held at its cache bit or in uncached_.
  std::vector<std::uint64_t> hit_words_;            // held and valid, one bit each
  std::vector<std::uint64_t> invalid_words_;        // held and not valid
  std::vector<Tag> tags_;                           // [bit], of what is held
  std::unordered_map<std::size_t, Request> other_;  // requests that differ from the cache entry of their name, by bit
  std::size_t next_bit_ = 0;  // where the next submission is looked for first: a program repeats its order
  std::size_t held_count_ = 0;
  std::size_t invalid_count_ = 0;
  std::unordered_map<std::string, Uncached> uncached_;
  std::vector<Uncached*> to_send_;  // those in uncached_ that rank 0 does not know yet, oldest first

  bool shutdown_requested_ = false;
  bool finished_ = false;

  // One cycle.
  Phase phase_ = Phase::kIdle;
  bool announced_shutdown_ = false;  // what this rank said when the cycle began
  bool any_shutdown_ = false;
  bool all_shutdown_ = false;
  bool coordinate_ = false;
  std::vector<std::uint64_t> agreed_;  // bits that hit on all ranks
  std::vector<std::string> answered_;  // names that the batches of the last cycle refer to
  CycleStats stats_;
};

}  // namespace hvd::core
