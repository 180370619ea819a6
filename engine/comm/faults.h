// Aborts, dead processes, roll calls and deadline errors of one rank: what it knows of its peers' misfortunes. Within a
// node they travel through the shared segment, between nodes as notices of the transport.
//
// Threads: check() and give_up() on the rank's own thread; the others from any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"
#include "engine/comm/layout.h"
#include "engine/comm/shm/segment.h"
#include "engine/comm/watch.h"

namespace hvd::comm {

class Transport;

class Faults final : public Watch {
 public:
  /// Borrows all three. `segment` is the one of this rank's node.
  Faults(const Layout& layout, Segment segment) : layout_(layout), segment_(segment) {
    statuses_.resize(static_cast<std::size_t>(layout.topology.size));
    said_.resize(static_cast<std::size_t>(layout.topology.size));
  }
  /// Without a transport (one node, or before it is there) notices are not looked at.
  void set_transport(Transport* transport) noexcept { transport_ = transport; }

  [[nodiscard]] bool aborted() const noexcept override {
    return segment_.header().abort_state.load(std::memory_order_relaxed) != 0;
  }
  void check(const Wait& wait, int awaited) override;
  [[noreturn]] void give_up(const Wait& wait, std::span<const int> missing, bool direct,
                            std::string_view detail) override;
  void tell_mismatch(std::string_view text) noexcept override;
  /// For a disagreement that this rank finds and others may not. Errors: mismatch, always; the peers are told first.
  [[noreturn]] void throw_mismatch(const std::string& text);
  /// For a disagreement that all ranks of this node find at one synchronisation. Each of them throws on its own; the
  /// other nodes are told. Errors: mismatch, always; on several nodes, also from all later collectives of this rank.
  [[noreturn]] void throw_node_mismatch(const std::string& text);
  /// Whether this rank has reported a fault: the communicator is of no more use then.
  [[nodiscard]] bool failed() const noexcept { return failed_.load() || out_of_step_.load() || aborted(); }
  /// Throws peer_lost with the reason if somebody has aborted; mismatch after throw_node_mismatch() on several nodes.
  void throw_if_aborted();

  /// The processes of this node's other ranks that this one can see, once all ranks have met. Any thread.
  [[nodiscard]] std::vector<Neighbour> neighbours() const;

  /// Calls `told` once for each collective in which this rank has waited for a quarter of the time that its deadline
  /// leaves; see ControlPlane::on_stall(). Before the first wait.
  void on_stall(OnStall told) { on_stall_ = std::move(told); }
  /// The collectives that the ranks of this node entered last, and what other nodes' ranks said last; flight_table().
  [[nodiscard]] std::string flight_record() const;
  /// "left all_reduce 16 (400000 bytes) 2.1 s ago"; empty if `rank` is on another node or has entered nothing.
  [[nodiscard]] std::string last_flight(int rank) const;

  void abort(std::string_view reason) noexcept;
  std::vector<std::optional<std::string>> roll_call(std::string_view status, std::chrono::milliseconds patience);
  void answer_roll_call(std::string_view status);

 private:
  enum class OnAbort : std::uint8_t { kGoOn, kStop };
  std::vector<std::optional<std::string>> call_roll(std::string_view status, std::chrono::milliseconds patience,
                                                    OnAbort on_abort);
  /// Looks at `awaited` if it is on this node; at all ranks of this node if it is -1. Errors: peer_lost naming one
  /// whose process has ended, at the second look.
  void look_for_dead(const Wait& wait, int awaited);
  /// Returns one whose process has ended, or -1.
  [[nodiscard]] int dead_neighbour(int awaited) const;
  void warn_of_stall(const Wait& wait, int awaited);
  /// `status` and the collective that this rank entered last.
  [[nodiscard]] std::string with_flight(std::string_view status) const;
  bool raise_here(std::string_view reason) noexcept;
  /// To every rank of the other nodes: the leader of a node may be the very one that hangs.
  void tell_other_nodes(std::string_view reason) noexcept;
  /// Reads what other nodes have sent. `status()` answers their roll calls.
  template <class Status>
  void take_notices(Status status);
  void post_status(std::uint32_t call, std::string_view status);
  void collect_local(std::uint32_t since);
  /// "rank 3 (host b), rank 4 (host b) and 9 more".
  [[nodiscard]] std::string names(std::span<const int> ranks) const;
  [[nodiscard]] bool on_my_node(int rank) const;
  [[nodiscard]] Cell& my_cell() const { return segment_.cell(layout_.topology.local_rank); }

  const Layout& layout_;
  Segment segment_;
  Transport* transport_ = nullptr;
  std::atomic<bool> failed_{false};
  std::atomic<bool> out_of_step_{false};  ///< this node's ranks disagreed, and the other nodes have given up
  Clock::time_point next_look_;           ///< for dead processes
  int suspect_ = -1;                      ///< the rank whose process had ended at the last look
  std::uint64_t suspected_in_ = 0;        ///< operation
  OnStall on_stall_;
  std::uint64_t warned_in_ = 0;  ///< operation
  mutable Mutex mutex_;
  std::string node_mismatch_ HVD_GUARDED_BY(mutex_);                         ///< the text, if out_of_step_
  std::vector<std::optional<std::string>> statuses_ HVD_GUARDED_BY(mutex_);  ///< [rank] heard since the last roll call
  std::vector<std::string> said_ HVD_GUARDED_BY(mutex_);                     ///< [rank] the last answer to a roll call
  std::uint32_t seen_call_ HVD_GUARDED_BY(mutex_) = 0;  ///< answers up to this call belong to earlier roll calls
};

}  // namespace hvd::comm
