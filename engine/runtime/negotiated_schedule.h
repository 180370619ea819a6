// The negotiated schedule: runs core::Negotiator over the control plane, and reduces the fused batches that the ranks
// agreed on. Owned and called by the engine's thread. A TicketTable holds the results for the callers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/types.h"
#include "engine/comm/communicator.h"
#include "engine/core/negotiator.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/fusion_buffer.h"

namespace hvd {

/// Tracks the outstanding *_async() calls and their results. Not synchronised: the owner must guard it.
class TicketTable {
 public:
  struct Outcome {
    std::string error;  ///< empty if the call succeeded
    Output output;
  };
  /// Returns a new ticket for the tensor `name`. Errors: invalid_argument if a tensor of this name is in flight.
  std::uint64_t issue(std::string_view name);
  void finish(std::uint64_t ticket, Outcome outcome);
  /// Returns true if finish() was called. Errors: invalid_argument for a ticket that was never issued or was already
  /// taken.
  [[nodiscard]] bool finished(std::uint64_t ticket) const;
  /// Returns the outcome of a finished ticket; null if the ticket is not finished. Errors: those of finished().
  [[nodiscard]] const Outcome* outcome(std::uint64_t ticket) const;
  /// Forgets a finished ticket and returns its outcome.
  Outcome take(std::uint64_t ticket);

 private:
  struct Entry {
    std::string name;
    std::optional<Outcome> outcome;
  };
  [[nodiscard]] const Entry& at(std::uint64_t ticket) const;

  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::unordered_set<std::string> in_flight_;
};

class TraceWriter;
class Watchdog;

/// Operands and results of an operation, unless the operation runs in place on one tensor.
struct Operands {
  std::vector<Piece> pieces;             ///< all_reduce: a group, or one tensor out of place
  const std::byte* data = nullptr;       ///< input of all_gather, reduce_scatter and all_to_all
  std::vector<std::int64_t> shape;       ///< shape of `data`
  std::vector<std::int64_t> split_rows;  ///< all_to_all: number of rows for each rank, [rank]
  Output output;
  Output scaled;  ///< copy of `data` times Scale::before, while the operation runs
};

/// A submitted tensor: its memory, and the ticket or the gradient that it belongs to.
struct PendingTensor {
  static constexpr std::size_t kNoGradient = ~std::size_t{0};

  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t gradient = kNoGradient;
  Ticket ticket = 0;
  std::string name;  ///< set by NegotiatedSchedule::submit() for a ticket's tensor
  Clock::time_point since;
  std::unique_ptr<Operands> operands;  ///< null: one tensor in place, at `data`
};

class NegotiatedSchedule {
 public:
  /// Called for every tensor that leaves the schedule. `error` is empty if its operation succeeded.
  using Finished = std::function<void(PendingTensor& tensor, const std::string& error)>;

  /// `trace` and `watchdog` may be null. Without a Watchdog a gradient must be complete when it is submitted.
  NegotiatedSchedule(comm::Communicator& communicator, const EngineOptions& options, TraceWriter* trace,
                     Watchdog* watchdog);

  /// Call while nothing is pending, with the same options on all ranks.
  void set_fusion(const core::FusionOptions& fusion) { negotiator_.set_fusion(fusion); }
  /// Sets the gradients of the following steps, in order. Call while nothing is pending.
  void set_gradients(std::vector<core::Request> requests);
  void submit(const core::Request& request, PendingTensor tensor);
  /// Submits the gradient with index `gradient`, which is ready at `data`.
  void submit_gradient(std::size_t gradient, std::byte* data, std::size_t bytes, Clock::time_point now);
  [[nodiscard]] bool pending() const { return negotiator_.has_pending(); }
  /// Runs one negotiation and the agreed batches, and adds their times and bytes to `report`. Returns true if there was
  /// a batch.
  /// Errors: those of the planes; timeout if a tensor has waited for a rank beyond the deadline.
  bool cycle(StepReport& report, const Finished& finished);
  [[nodiscard]] const core::CycleStats& stats() const { return negotiator_.stats(); }

 private:
  core::CycleDone negotiate();
  void execute(const core::Batch& batch, StepReport& report, const Finished& finished);
  void reduce_gradients(const core::Batch& batch, StepReport& report);
  void reduce_fused(const core::Batch& batch, StepReport& report);
  /// Runs an operation that is not an all-reduce. Returns the bytes of its result (all_to_all: bytes received).
  std::size_t perform(const core::Batch& batch, PendingTensor& tensor, StepReport& report);
  void reduce(const core::Batch& batch, std::byte* data, std::size_t bytes, StepReport& report);
  void check_for_stalls();
  [[nodiscard]] core::Tag free_slot();
  [[nodiscard]] const std::string& name_of(const PendingTensor& tensor) const {
    return tensor.gradient == PendingTensor::kNoGradient ? tensor.name : gradients_[tensor.gradient].name;
  }
  /// Returns "tensor 'conv1' was submitted by rank 0 but not by every rank within 15000 ms; missing: rank 1 (host b)".
  /// Only rank 0 can know the missing ranks. Sets `known` to true if this rank is rank 0 and knows them.
  std::string stall_text(const std::string& tensor, std::chrono::milliseconds within, bool& known) const;

  comm::Communicator& communicator_;
  const EngineOptions& options_;
  TraceWriter* trace_;
  Watchdog* watchdog_;
  core::Negotiator negotiator_;
  /// PendingTensor::since of the last tensor that was reported to rank 0, and of the last that `warn` was called for.
  Clock::time_point reported_to_rank0_, warned_;
  FusionBuffer buffer_;
  struct Slot {
    PendingTensor tensor;
    bool used = false;
  };
  std::vector<core::Request> gradients_;
  std::vector<core::CachedAt> cached_;  // [gradient]: place in the negotiator's cache; CachedAt{} if not found yet
  // Indexed by tag. The tags of gradients are their indices; the tags of tickets' tensors are larger.
  std::vector<Slot> slots_;
  std::vector<core::Tag> free_;
  std::vector<PendingTensor> members_;  // tensors of the current batch; kept between batches to save allocations
  std::vector<Piece> pieces_;
};

}  // namespace hvd
