// The negotiated schedule: drives core::Negotiator over the control plane and reduces what the ranks agreed
// upon, fused. Owned and called by the engine's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/types.h"
#include "engine/comm/communicator.h"
#include "engine/core/negotiator.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/fusion_buffer.h"
#include "engine/runtime/tensor_memory.h"
#include "engine/runtime/tickets.h"

namespace hvd {

class TraceWriter;

/// Operands and results of what is not one tensor in place.
struct Operands {
  std::vector<Piece> pieces;             ///< all_reduce: a group, or one tensor out of place
  const std::byte* data = nullptr;       ///< what all_gather, reduce_scatter and all_to_all read
  std::vector<std::int64_t> shape;       ///< of `data`
  std::vector<std::int64_t> split_rows;  ///< all_to_all: rows for each rank
  Output output;
  Output scaled;  ///< copy of `data` times Scale::before, while the operation runs
};

/// Where a submitted tensor lies, and who waits for it: a ticket, or the step (gradient).
struct PendingTensor {
  static constexpr std::size_t kNoGradient = ~std::size_t{0};

  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t gradient = kNoGradient;
  Ticket ticket = 0;
  std::string name;  ///< of a ticket's tensor; set by NegotiatedSchedule::submit()
  Clock::time_point since;
  std::unique_ptr<Operands> operands;  ///< null: one tensor in place, at `data`
};

class NegotiatedSchedule {
 public:
  /// Called for every tensor that left the schedule; `error` is empty when its operation was done.
  using Finished = std::function<void(PendingTensor& tensor, const std::string& error)>;

  NegotiatedSchedule(comm::Communicator& communicator, const EngineOptions& options, TraceWriter* trace);

  /// Called before the memory of a gradient is touched: what is enqueued on the data plane from then on must wait until
  /// the gradient is there. None on hosts, where "ready" means there.
  using Gate = std::function<void(std::size_t gradient)>;
  void set_gate(Gate gate) { gate_ = std::move(gate); }

  /// With nothing pending, on all ranks alike.
  void set_fusion(const core::FusionOptions& fusion) { negotiator_.set_fusion(fusion); }
  /// The gradients of steps to come, in their order. With nothing pending.
  void set_gradients(std::vector<core::Request> requests);
  void submit(const core::Request& request, PendingTensor tensor);
  /// The gradient of this index is ready at `data`.
  void submit_gradient(std::size_t gradient, std::byte* data, std::size_t bytes, Clock::time_point now);
  [[nodiscard]] bool pending() const { return negotiator_.has_pending(); }
  /// One negotiation and the batches that it agreed upon; adds to `report`. Returns whether a tensor left.
  /// Errors: those of the planes; timeout when a tensor has been waiting for a rank beyond the deadline.
  bool cycle(StepReport& report, const Finished& finished);
  [[nodiscard]] const core::CycleStats& stats() const { return negotiator_.stats(); }

 private:
  core::CycleDone negotiate();
  void execute(const core::Batch& batch, StepReport& report, const Finished& finished);
  void reduce_gradients(const core::Batch& batch, StepReport& report);
  void reduce_fused(const core::Batch& batch, StepReport& report);
  /// Runs an operation that is no all-reduce. Returns the bytes of its result; all_to_all: what this rank received.
  std::size_t perform(const core::Batch& batch, PendingTensor& tensor, StepReport& report);
  void reduce(const core::Batch& batch, std::byte* data, std::size_t bytes, StepReport& report);
  void look_for_stalled();
  [[nodiscard]] core::Tag free_slot();
  [[nodiscard]] const std::string& name_of(const PendingTensor& tensor) const {
    return tensor.gradient == PendingTensor::kNoGradient ? tensor.name : gradients_[tensor.gradient].name;
  }
  /// "tensor 'conv1' was submitted by rank 0 but not by every rank within 15000 ms; missing: rank 1 (host b)". Rank 0
  /// knows who is missing; `known` tells whether it has heard.
  std::string stall_text(const std::string& tensor, std::chrono::milliseconds within, bool& known) const;

  comm::Communicator& communicator_;
  const EngineOptions& options_;
  TraceWriter* trace_;
  Gate gate_;
  core::Negotiator negotiator_;
  Clock::time_point surfaced_, warned_;  ///< PendingTensor::since of the last tensor that stalled
  FusionBuffer buffer_;
  TensorMemory memory_;
  struct Slot {
    PendingTensor tensor;
    bool used = false;
  };
  std::vector<core::Request> gradients_;
  std::vector<core::CachedAt> cached_;  // [gradient], as far as the negotiator has found it
  // Indexed by tag. Tags below gradients_.size() are gradients.
  std::vector<Slot> slots_;
  std::vector<core::Tag> free_;
  std::vector<PendingTensor> members_;  // of the batch at hand; kept to save allocations
  std::vector<Piece> pieces_;
};

}  // namespace hvd
