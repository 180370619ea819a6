// Horovod's negotiation as a pure state machine, one per rank. The caller performs the collective that an Action asks
// for and feeds the result back. The engine and the lockstep tests run the same class. The protocol follows the
// behaviour of Horovod's horovod/common/controller.cc; the code is our own:
//
//   begin_cycle() ─► AllReduceBits(AND over status and cache bits) ─► on_bits()
//       any rank holds an invalid entry ─► AllReduceBits(OR over invalid bits) ─► on_bits(): erase everywhere
//       on every rank, all pending tensors are cached ─► CycleDone: all ranks fuse locally and identically
//       else ─► Gather(requests to rank 0) ─► on_gathered() on rank 0 ─► Broadcast(response) ─► on_broadcast()
//             ─► CycleDone
//
// The status bits are inverted so that one AND tells whether any rank has an uncached tensor or an invalid entry. A
// rank that submits a cached name with a new shape clears its "my entry is still valid" bit in the same exchange.
// Without this bit the other ranks would treat the tensor as agreed and wait for ever.
//
// The second word of the exchange holds a digest of options and cache history, and its complement. If these differ
// between ranks, the AND differs from every rank's word, and the ranks report an error instead of fusing differently.
//
// A rank enters a cycle if and only if it has a pending tensor. While a rank has nothing pending, no tensor can
// complete, so other ranks may wait for it. Therefore no rank runs idle cycles, and no rank deadlocks.
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
  /// Send `message` to rank 0, which calls on_gathered() with all ranks' messages. Other ranks call on_gathered({}).
  Bytes message;
};
struct Broadcast {
  Bytes message;  ///< set on rank 0, else empty. Every rank, also rank 0, passes the message to on_broadcast().
};
struct CycleDone {
  /// Execute these batches in this order. The list is empty if no tensor is ready on all ranks yet. The list is equal
  /// on all ranks except for the tags. The names are valid until the next begin_cycle() or the Negotiator's end.
  std::vector<Batch> batches;
};
using Action = std::variant<AllReduceBits, Gather, Broadcast, CycleDone>;

struct NegotiatorOptions {
  std::size_t cache_capacity = 1024;  ///< maximum number of cached requests (HOROVOD_CACHE_CAPACITY)
  FusionOptions fusion;
};

struct CycleStats {
  std::uint64_t cycles = 0;       ///< finished cycles
  std::uint64_t fast_cycles = 0;  ///< cycles with cache hits only, without the coordinator
  std::uint64_t coordinated = 0;  ///< cycles with a gather to rank 0 and its answer
  std::uint64_t invalidated = 0;  ///< cache entries erased because a rank submitted a request that differs from them
};

/// A tensor that some ranks have requested and other ranks have not. Known only on rank 0.
struct Stall {
  std::string name;
  std::vector<int> missing_ranks;
};

class Coordinator;
struct Response;

/// Errors of the on_*() methods: invalid_argument for a corrupt message and for a fault that only this rank detects;
/// mismatch if the ranks' options or caches differ. After an error this rank must leave the world.
class Negotiator {
 public:
  Negotiator(int rank, int size, const NegotiatorOptions& options);
  ~Negotiator();
  Negotiator(Negotiator&&) noexcept;
  Negotiator& operator=(Negotiator&&) noexcept;

  /// Call between cycles. If the ranks' options differ, the next cycle fails with a mismatch.
  void set_fusion(const FusionOptions& fusion);
  /// Submits a local tensor that became ready. A tensor submitted during a cycle takes part in the next cycle. Returns
  /// the place of an identical request in the cache, for submit_cached(); nullopt if the cache has no such request.
  /// Errors: invalid_argument if `request.name` is already pending on this rank, or if its shape makes no sense.
  std::optional<CachedAt> submit(const Request& request, Tag tag = 0);
  /// Submits the request that submit() found in the cache at `at`; takes a few nanoseconds. Returns false, and does
  /// nothing, if the cache has dropped or replaced the entry; call submit() in this case. Errors: those of submit().
  bool submit_cached(const CachedAt& at, Tag tag = 0);
  [[nodiscard]] bool has_pending() const { return pending_count() > 0; }
  [[nodiscard]] std::size_t pending_count() const { return held_count_ + uncached_.size(); }
  /// Makes the next cycle tell rank 0 about every pending tensor, cached or not, so that stalls() on rank 0 can name
  /// the tensor. Call between cycles, after waiting too long. The cache loses the entries of these tensors.
  void report_pending();

  Action begin_cycle();
  Action on_bits(std::span<const std::uint64_t> reduced);
  /// `messages`: on rank 0 one message of each rank; on other ranks empty.
  Action on_gathered(std::span<const Bytes> messages);
  Action on_broadcast(std::span<const std::byte> message);

  [[nodiscard]] const CycleStats& stats() const { return stats_; }
  [[nodiscard]] const ResponseCache& cache() const { return cache_; }
  /// Returns the tensors that some ranks, but not all, have requested from rank 0; empty on other ranks. Ranks do not
  /// request a cached tensor from rank 0 unless they call report_pending().
  [[nodiscard]] std::vector<Stall> stalls() const;

 private:
  enum class Phase : std::uint8_t { kIdle, kBits, kInvalidBits, kGather, kBroadcast };
  struct Uncached {
    Request request;
    Tag tag = 0;
    bool sent = false;
  };
  /// The tensors that all ranks agreed on in this cycle, in the agreed order. Each array except `rows` has one element
  /// per tensor.
  struct Agreed {
    std::vector<FusionItem> items;
    std::vector<std::string_view> names;
    std::vector<Tag> tags;
    std::vector<std::vector<std::int64_t>> rows;  // [all_gather, rank]: one element per all_gather
  };

  [[nodiscard]] std::uint64_t digest() const;
  [[noreturn]] void already_pending(std::string_view name) const;
  [[nodiscard]] bool holds(std::size_t bit) const;
  /// Makes the tensor whose name is cached at `bit` pending. `other`: the request if it differs from the cache entry.
  void hold(std::size_t bit, Tag tag, std::optional<Request> other);
  /// Removes the pending tensor at `bit` and returns it.
  [[nodiscard]] Uncached take(std::size_t bit);
  /// Call before the entry at `bit` is erased. Moves a tensor that is pending at `bit` to uncached_.
  void forget(std::size_t bit);
  void miss(Uncached&& pending);
  Action on_status(std::span<const std::uint64_t> reduced);
  Action after_bits();
  Action finish(std::vector<Response> responses);
  void take_agreed_bits(Agreed& agreed);
  /// Appends the tensors on which all ranks agree to `agreed`; returns the tensors that failed.
  std::vector<Batch> take_responses(std::vector<Response> responses, Agreed& agreed);
  /// Returns true if rank 0's answer matches this rank's own request.
  [[nodiscard]] bool answers(const Response& response, const Request& own) const;

  int rank_;
  int size_;
  NegotiatorOptions options_;
  ResponseCache cache_;
  std::uint64_t options_digest_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0

  // A pending tensor is in uncached_, or marked at the bit of its cache entry in one of the next two bit vectors.
  std::vector<std::uint64_t> hit_words_;            // the pending request equals the cache entry
  std::vector<std::uint64_t> invalid_words_;        // the pending request differs from the cache entry of its name
  std::vector<Tag> tags_;                           // [bit]; valid where a tensor is pending
  std::unordered_map<std::size_t, Request> other_;  // requests that differ from the cache entry of their name, by bit
  std::size_t next_bit_ = 0;  // guessed bit of the next submission: a program submits in the same order every step
  std::size_t held_count_ = 0;
  std::size_t invalid_count_ = 0;
  std::unordered_map<std::string, Uncached> uncached_;
  std::vector<Uncached*> to_send_;  // elements of uncached_ that rank 0 does not know yet, oldest first

  // State of the current cycle.
  Phase phase_ = Phase::kIdle;
  bool coordinate_ = false;
  std::vector<std::uint64_t> agreed_;  // bits that are set in hit_words_ on all ranks
  std::vector<std::string> answered_;  // names that the batches of the last cycle refer to
  CycleStats stats_;
};

}  // namespace hvd::core
