#include "engine/runtime/negotiated_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <variant>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/core/gradient_runs.h"
#include "engine/runtime/operations.h"
#include "engine/runtime/roll_call.h"
#include "engine/runtime/trace.h"

// Ranks may finish their tensors in different orders, but a reduction needs all ranks at once: if rank 0 began with
// tensor A and rank 1 with tensor B, each would wait for the other. So no rank reduces a tensor on its own. In cycles,
// the ranks find out which tensors all of them have submitted, and reduce exactly these, all in the same order.
//
//   submitted     A  B  C  D
//   rank 0        1  1  0  1
//   rank 1        1  0  0  1
//   rank 2        1  1  1  1
//   AND           1  0  0  1      reduce A and D now; B and C wait for a later cycle
//
// At first no bit belongs to a tensor. A rank then sends the request (name, type, shape, ...) to rank 0, which answers
// all ranks once every rank has asked, and says what differs if the requests do not match. All ranks put the answered
// requests into their caches in the same order, so a tensor has the same bit on all ranks. Training submits the same
// tensors in every step: while they are cached, a cycle is one all-reduce of a few words, without names and rank 0.
//
// All ranks then fuse the agreed tensors into batches by the same rules (core/fusion.h), because every reduction costs
// its latency, however small it is. cycle() below is one turn:
//
//   negotiate()   core::Negotiator says which words or messages to exchange; the control plane carries them
//   execute()     one batch after another through the data plane. One tensor, one run of neighbouring gradients, or
//                 several long runs are reduced in place. Others are packed into the fusion buffer.
//
// A rank enters a cycle when it has submitted something. Until then the others wait for it, because no tensor can be
// complete. If a rank goes on with other tensors and never submits this one, check_for_stalls() finds it.
// core/negotiator.h has the protocol itself.

namespace hvd {
namespace {

/// A stall is reported after 1/kStallShare of the deadline. The waits of the planes report a stall after the same time.
constexpr int kStallShare = 4;

std::string title(const core::Batch& batch) {
  const std::string first(batch.names.front());
  return batch.names.size() == 1 ? first : fmt::format("{} +{}", first, batch.names.size() - 1);
}

}  // namespace

NegotiatedSchedule::NegotiatedSchedule(comm::Communicator& communicator, const EngineOptions& options,
                                       TraceWriter* trace, Watchdog* watchdog)
    : communicator_(communicator),
      options_(options),
      trace_(trace),
      watchdog_(watchdog),
      negotiator_(communicator.topology().rank, communicator.topology().size, options.negotiation) {}

void NegotiatedSchedule::set_gradients(std::vector<core::Request> requests) {
  HVD_ASSERT(!pending());
  gradients_ = std::move(requests);
  cached_.assign(gradients_.size(), {});
  slots_.clear();
  slots_.resize(gradients_.size());
  free_.clear();
}

core::Tag NegotiatedSchedule::free_slot() {
  if (free_.empty()) {
    slots_.emplace_back();
    return static_cast<core::Tag>(slots_.size() - 1);
  }
  const core::Tag tag = free_.back();
  free_.pop_back();
  return tag;
}

void NegotiatedSchedule::submit(const core::Request& request, PendingTensor tensor) {
  const core::Tag tag = free_slot();
  tensor.name = request.name;
  slots_[tag] = {std::move(tensor), true};
  negotiator_.submit(request, tag);
}

void NegotiatedSchedule::submit_gradient(std::size_t gradient, std::byte* data, std::size_t bytes,
                                         Clock::time_point now) {
  const auto tag = static_cast<core::Tag>(gradient);
  Slot& slot = slots_[gradient];
  HVD_ASSERT(!slot.used);  // Engine::Impl::gradient_ready() refuses to mark a gradient twice
  slot.used = true;
  slot.tensor.data = data;
  slot.tensor.bytes = bytes;
  slot.tensor.gradient = gradient;
  slot.tensor.since = now;
  // A program has the same gradients in every step. From the third step on, therefore, no name is looked up.
  core::CachedAt& at = cached_[gradient];
  if (!negotiator_.submit_cached(at, tag)) {
    at = negotiator_.submit(gradients_[gradient], tag).value_or(core::CachedAt{});
  }
}

bool NegotiatedSchedule::cycle(StepReport& report, const Finished& finished) {
  const auto begin = Clock::now();
  const core::CycleDone done = negotiate();
  const auto end = Clock::now();
  report.control += end - begin;
  if (trace_ != nullptr) trace_->add(TraceTrack::kEngine, "negotiate", begin, end);
  for (const core::Batch& batch : done.batches) execute(batch, report, finished);
  if (done.batches.empty()) check_for_stalls();
  return !done.batches.empty();
}

core::CycleDone NegotiatedSchedule::negotiate() {
  const Deadline deadline = options_.deadline.from_now();
  comm::ControlPlane& control = communicator_.control();
  core::Action action = negotiator_.begin_cycle();
  for (;;) {
    if (auto* bits = std::get_if<core::AllReduceBits>(&action)) {
      control.all_reduce_bits(bits->words, bits->op, deadline);
      action = negotiator_.on_bits(bits->words);
    } else if (const auto* gather = std::get_if<core::Gather>(&action)) {
      action = negotiator_.on_gathered(control.gather(gather->message, deadline));
    } else if (const auto* broadcast = std::get_if<core::Broadcast>(&action)) {
      action = negotiator_.on_broadcast(control.broadcast(broadcast->message, 0, deadline));
    } else {
      return std::get<core::CycleDone>(std::move(action));
    }
  }
}

void NegotiatedSchedule::execute(const core::Batch& batch, StepReport& report, const Finished& finished) {
  members_.clear();
  for (const core::Tag tag : batch.tags) {
    Slot& slot = slots_[tag];
    HVD_ASSERT(slot.used);
    slot.used = false;
    members_.push_back(std::move(slot.tensor));
    if (tag >= gradients_.size()) free_.push_back(tag);
  }
  if (batch.error.empty()) {
    const bool gradients = std::all_of(members_.begin(), members_.end(), [](const PendingTensor& tensor) {
      return tensor.gradient != PendingTensor::kNoGradient;
    });
    if (watchdog_ != nullptr) {
      for (const PendingTensor& tensor : members_) {
        if (tensor.gradient != PendingTensor::kNoGradient) watchdog_->before_gradient(tensor.gradient);
      }
    }
    std::size_t bytes = batch.bytes;
    if (batch.terms.kind != core::Collective::kAllReduce && batch.terms.kind != core::Collective::kGroupedAllReduce) {
      bytes = perform(batch, members_.front(), report);
    } else {
      gradients ? reduce_gradients(batch, report) : reduce_fused(batch, report);
    }
    if (!gradients) communicator_.data().complete("tensors with tickets", options_.deadline.from_now());
    report.batches += 1;
    report.bytes += bytes;
  }
  for (PendingTensor& tensor : members_) finished(tensor, batch.error);
  members_.clear();
}

void NegotiatedSchedule::reduce_gradients(const core::Batch& batch, StepReport& report) {
  const auto in_order = [](const PendingTensor& a, const PendingTensor& b) { return a.gradient < b.gradient; };
  if (!std::is_sorted(members_.begin(), members_.end(), in_order)) {
    std::sort(members_.begin(), members_.end(), in_order);
  }
  const core::GradientRuns ranges = core::gradient_runs(batch.tags, batch.bytes);
  if (ranges.packed) {
    reduce_fused(batch, report);
    return;
  }
  const auto each_run = [&] {
    auto member = members_.begin();
    for (const core::GradientRun& run : ranges.runs) {
      const PendingTensor& head = *member;
      member += static_cast<std::ptrdiff_t>(run.last - run.first);
      const PendingTensor& tail = *std::prev(member);
      reduce(batch, head.data, static_cast<std::size_t>(tail.data + tail.bytes - head.data), report);
    }
  };
  if (ranges.runs.size() == 1) {
    each_run();
    return;
  }
  const auto reduced_before = report.reduce;
  const auto begin = Clock::now();
  communicator_.data().together(each_run, options_.deadline.from_now());
  // The time of together() replaces the times of the single runs, because a plane may do all work at its end.
  report.reduce = reduced_before + (Clock::now() - begin);
}

void NegotiatedSchedule::reduce_fused(const core::Batch& batch, StepReport& report) {
  pieces_.clear();
  for (const PendingTensor& tensor : members_) {
    if (tensor.operands == nullptr) {
      pieces_.push_back({tensor.data, tensor.bytes});
    } else {
      pieces_.insert(pieces_.end(), tensor.operands->pieces.begin(), tensor.operands->pieces.end());
    }
  }
  const std::size_t bytes = lay_out(pieces_, options_.negotiation.fusion.align_bytes);
  if (bytes == 0) return;    // the tensors have no elements, on any rank
  if (pieces_.size() > 1) {  // reserve() is collective: call it even if this rank's tensors can be reduced in place
    buffer_.reserve(bytes, options_.negotiation.fusion.threshold_bytes, communicator_.data(),
                    options_.deadline.from_now());
  }
  if (in_place(pieces_)) {
    for (const Piece& piece : pieces_) {
      if (piece.from != nullptr) communicator_.data().copy(piece.data, piece.from, piece.bytes);
    }
    reduce(batch, pieces_.front().data, bytes, report);
    return;
  }
  const auto begin = Clock::now();
  std::byte* const packed = buffer_.pack(pieces_, communicator_.data());
  const auto packed_at = Clock::now();
  reduce(batch, packed, bytes, report);
  const auto reduced_at = Clock::now();
  buffer_.unpack(pieces_, communicator_.data());
  const auto end = Clock::now();
  report.copy += (packed_at - begin) + (end - reduced_at);
  if (trace_ != nullptr) {
    trace_->add(TraceTrack::kEngine, "pack", begin, packed_at, batch.bytes);
    trace_->add(TraceTrack::kEngine, "unpack", reduced_at, end, batch.bytes);
  }
}

void NegotiatedSchedule::reduce(const core::Batch& batch, std::byte* data, std::size_t bytes, StepReport& report) {
  const std::size_t count = bytes / size_of(batch.dtype);
  if (count == 0) return;  // the tensors have no elements
  const auto begin = Clock::now();
  communicator_.data().scale(data, count, batch.dtype, batch.terms.prescale);
  communicator_.data().all_reduce(data, count, batch.dtype, batch.op, options_.deadline.from_now());
  communicator_.data().scale(data, count, batch.dtype, batch.terms.postscale);
  const auto end = Clock::now();
  report.reduce += end - begin;
  if (trace_ != nullptr) trace_->add_reduce(title(batch), begin, end, bytes, batch.names.size());
}

std::size_t NegotiatedSchedule::perform(const core::Batch& batch, PendingTensor& tensor, StepReport& report) {
  const auto begin = Clock::now();
  const Deadline deadline = options_.deadline.from_now();
  const OperationContext here{.communicator = communicator_, .deadline = deadline};
  switch (batch.terms.kind) {
    case core::Collective::kBroadcast:
      communicator_.data().broadcast(tensor.data, tensor.bytes, batch.terms.root, deadline);
      break;
    case core::Collective::kAllGather: gather_rows(here, batch, *tensor.operands); break;
    case core::Collective::kReduceScatter: reduce_scatter_rows(here, batch, *tensor.operands); break;
    case core::Collective::kAllToAll: exchange_rows(here, batch, *tensor.operands); break;
    case core::Collective::kBarrier:    // nothing left to do: all ranks have submitted the barrier
    case core::Collective::kAllReduce:  // execute() handles the all-reduces
    case core::Collective::kGroupedAllReduce: break;
  }
  const auto end = Clock::now();
  // A request for an all_to_all has only the shape of one row. The ranks exchange the numbers of rows when it runs.
  const std::size_t bytes =
      batch.terms.kind == core::Collective::kAllToAll ? tensor.operands->output.data().size() : batch.bytes;
  report.reduce += end - begin;
  if (trace_ != nullptr) trace_->add_reduce(title(batch), begin, end, bytes, 1);
  return bytes;
}

/// If a rank never submits a tensor, each cycle succeeds without reducing the tensor, and no wait of the planes times
/// out. This function therefore reports the tensor, and throws timeout at the deadline.
void NegotiatedSchedule::check_for_stalls() {
  const PendingTensor* oldest = nullptr;
  for (const Slot& slot : slots_) {
    if (slot.used && (oldest == nullptr || slot.tensor.since < oldest->since)) oldest = &slot.tensor;
  }
  if (oldest == nullptr) return;
  const PendingTensor& pending = *oldest;
  const std::string& tensor = name_of(pending);
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - pending.since);
  const std::chrono::milliseconds patience = options_.deadline.timeout;
  bool known = false;
  if (waited >= patience) {
    const std::string text = stall_text(tensor, patience, known);
    throw Error(Errc::kTimeout,
                fmt::format("{}; find out what blocks it, or raise {}", text, options_.deadline.set_by));
  }
  if (waited < patience / kStallShare) return;
  if (std::exchange(reported_to_rank0_, pending.since) != pending.since) return negotiator_.report_pending();
  if (warned_ == pending.since || !options_.warn) return;
  const std::string text = stall_text(tensor, waited, known);
  if (!known) return;
  warned_ = pending.since;
  options_.warn(
      fmt::format("{}; this rank gives up in {} ms ({})", text, (patience - waited).count(), options_.deadline.set_by));
}

std::string NegotiatedSchedule::stall_text(const std::string& tensor, std::chrono::milliseconds within,
                                           bool& known) const {
  const auto& topology = communicator_.topology();
  std::string text = fmt::format("tensor '{}' was submitted by rank {} but not by every rank within {} ms", tensor,
                                 topology.rank, within.count());
  for (const core::Stall& stall : negotiator_.stalls()) {
    if (stall.name != tensor) continue;
    known = true;
    for (std::size_t i = 0; i < stall.missing_ranks.size(); ++i) {
      text += (i == 0 ? "; missing: " : ", ") +
              comm::rank_at(static_cast<std::size_t>(stall.missing_ranks[i]), topology.hosts);
    }
  }
  return text;
}

std::uint64_t TicketTable::issue(std::string_view name) {
  if (!in_flight_.emplace(name).second) {
    throw Error(Errc::kInvalidArgument, fmt::format("tensor '{}' is still in flight; wait for its ticket first", name));
  }
  entries_.emplace(++last_, Entry{std::string(name), std::nullopt});
  return last_;
}

void TicketTable::finish(std::uint64_t ticket, Outcome outcome) {
  const auto entry = entries_.find(ticket);
  HVD_ASSERT(entry != entries_.end() && !entry->second.outcome);
  in_flight_.erase(entry->second.name);
  entry->second.outcome = std::move(outcome);
}

const TicketTable::Entry& TicketTable::at(std::uint64_t ticket) const {
  const auto entry = entries_.find(ticket);
  if (entry == entries_.end()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("ticket {} was never issued or has been waited for already", ticket));
  }
  return entry->second;
}

bool TicketTable::finished(std::uint64_t ticket) const { return at(ticket).outcome.has_value(); }

const TicketTable::Outcome* TicketTable::outcome(std::uint64_t ticket) const {
  const auto& outcome = at(ticket).outcome;
  return outcome ? &*outcome : nullptr;
}

TicketTable::Outcome TicketTable::take(std::uint64_t ticket) {
  const auto entry = entries_.find(ticket);
  HVD_ASSERT(entry != entries_.end() && entry->second.outcome);
  Outcome outcome = std::move(*entry->second.outcome);
  entries_.erase(entry);
  return outcome;
}

}  // namespace hvd
