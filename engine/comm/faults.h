// Detects and reports the faults of a rank and its peers: aborts, dead processes and passed deadlines. After a deadline
// the ranks may hold a roll call: ranks that do not answer it are at fault. Ranks of one node report faults through the
// shared segment, ranks of different nodes through notices of the transport. Every loop that waits for a peer calls
// check().
//
// Threads: only the rank's own thread calls check() and give_up(); any thread may call the other methods.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"
#include "engine/comm/flight_record.h"
#include "engine/comm/layout.h"
#include "engine/comm/shm/segment.h"

namespace hvd::comm {

class Transport;

class Faults {
 public:
  /// Borrows both arguments. `segment` is the shared segment of this rank's node.
  Faults(const Layout& layout, Segment segment) : layout_(layout), segment_(segment) {
    statuses_.resize(static_cast<std::size_t>(layout.topology.size));
    last_answers_.resize(static_cast<std::size_t>(layout.topology.size));
  }
  /// Without a transport (one node, or before this call) no notices are received.
  void set_transport(Transport* transport) noexcept { transport_ = transport; }

  /// Returns true if a rank has aborted; check() then throws. Cheap enough for each iteration of a spinning loop.
  [[nodiscard]] bool aborted() const noexcept {
    return segment_.header().abort_state.load(std::memory_order_relaxed) != 0;
  }
  /// Call this between sleeps while waiting for `awaited` (a rank, or -1 for any). Answers roll calls.
  /// Errors: peer_lost with the peer's reason if a peer has aborted; peer_lost if the process of `awaited` has ended,
  /// or if `awaited` is -1 and the process of any rank of this node has ended.
  void check(const Wait& wait, int awaited);
  /// Call this when the deadline has passed while waiting for `missing`. Throws peer_lost if one rank is at fault, else
  /// timeout. `direct` is true if the ranks of `missing` certainly did not arrive. If it is false, those ranks may be
  /// waiting for another rank: give_up() then holds a roll call, and ranks that do not answer are at fault. The text
  /// ends with `detail`.
  [[noreturn]] void give_up(const Wait& wait, std::span<const int> missing, bool direct, std::string_view detail);
  /// Makes the waits of the peers fail with `text`, which describes a disagreement that the peers may not detect.
  void abort_for_mismatch(std::string_view text) noexcept;
  /// For a disagreement that this rank detects and other ranks may not detect. Aborts the peers, then throws mismatch.
  [[noreturn]] void throw_mismatch(const std::string& text);
  /// For a disagreement that all ranks of this node detect in the same synchronisation. Each of them throws mismatch,
  /// and the leader aborts the other nodes. With several nodes, this rank's later collectives throw mismatch, too.
  [[noreturn]] void throw_node_mismatch(const std::string& text);
  /// Returns true if this rank has reported a fault. After that, the communicator cannot be used.
  [[nodiscard]] bool failed() const noexcept { return failed_.load() || out_of_step_.load() || aborted(); }
  /// Throws peer_lost with the reason if a rank has aborted; mismatch after throw_node_mismatch() on several nodes.
  void throw_if_aborted();
  /// See ControlPlane::look_for_dead().
  void look_for_dead();

  /// Returns the other ranks of this node whose processes are visible. The list is complete once all ranks of the node
  /// have connected. Any thread.
  [[nodiscard]] std::vector<Neighbour> neighbours() const;

  /// Registers a callback, which is called once for each collective in which this rank has waited for a quarter of the
  /// time to the deadline; see ControlPlane::on_stall(). Call before the first wait.
  void on_stall(OnStall told) { on_stall_ = std::move(told); }
  /// Returns the flight_table() of this node's ranks, with the last roll-call answers of other nodes' ranks.
  [[nodiscard]] std::string flight_record() const;
  /// Returns text such as "left all_reduce 16 (400000 bytes) 2.1 s ago"; empty if `rank` is on another node or has
  /// entered nothing.
  [[nodiscard]] std::string last_flight(int rank) const;

  void abort(std::string_view reason) noexcept;
  std::vector<std::optional<std::string>> roll_call(std::string_view status, std::chrono::milliseconds patience);
  void answer_roll_call(std::string_view status);

 private:
  enum class OnAbort : std::uint8_t { kGoOn, kStop };
  std::vector<std::optional<std::string>> call_roll(std::string_view status, std::chrono::milliseconds patience,
                                                    OnAbort on_abort);
  /// Checks whether the process of rank `awaited` has ended, if that rank is on this node. If `awaited` is -1, checks
  /// all ranks of this node. Errors: peer_lost, naming the rank, if two checks in a row find that its process has
  /// ended.
  void look_for_dead(const Wait& wait, int awaited);
  /// Throws peer_lost, because the process of `rank` has ended. `during` is empty or names the wait that noticed it.
  [[noreturn]] void throw_lost(int rank, std::string_view during);
  /// Returns a rank whose process has ended, out of those that look_for_dead() checks; -1: none.
  [[nodiscard]] int dead_neighbour(int awaited) const;
  void warn_of_stall(const Wait& wait, int awaited);
  /// Returns `status` followed by the collective that this rank entered last.
  [[nodiscard]] std::string with_flight(std::string_view status) const;
  bool raise_here(std::string_view reason) noexcept;
  /// Sends `reason` to every rank of the other nodes, not just to the leaders: a leader may be the rank that hangs.
  void tell_other_nodes(std::string_view reason) noexcept;
  /// Reads the notices from other nodes. `status()` gives this rank's answer to their roll calls.
  template <class Status>
  void take_notices(Status status);
  void post_status(std::uint32_t call, std::string_view status);
  void collect_local(std::uint32_t since);
  /// Returns "rank 3 (host b), rank 4 (host b) and 9 more".
  [[nodiscard]] std::string names(std::span<const int> ranks) const;
  [[nodiscard]] bool on_my_node(int rank) const;
  [[nodiscard]] Cell& my_cell() const { return segment_.cell(layout_.topology.local_rank); }

  const Layout& layout_;
  Segment segment_;
  Transport* transport_ = nullptr;
  std::atomic<bool> failed_{false};
  std::atomic<bool> out_of_step_{false};  ///< this node's ranks disagreed, and the other nodes were aborted
  Clock::time_point next_look_;           ///< time of the next check for dead processes
  int suspect_ = -1;                      ///< the rank whose process had ended at the last check; -1: none
  std::uint64_t suspected_in_ = 0;        ///< sequence number of the operation during which `suspect_` was set
  OnStall on_stall_;
  std::uint64_t warned_in_ = 0;  ///< sequence number of the operation for which this rank last called `on_stall_`
  mutable Mutex mutex_;
  Clock::time_point next_idle_look_ HVD_GUARDED_BY(mutex_);  ///< time of the next look outside of a wait
  int idle_suspect_ HVD_GUARDED_BY(mutex_) = -1;             ///< what that look found last; -1: nothing
  std::string node_mismatch_ HVD_GUARDED_BY(mutex_);         ///< text of the disagreement if out_of_step_ is true
  /// [rank]: answers received since this rank's last roll call.
  std::vector<std::optional<std::string>> statuses_ HVD_GUARDED_BY(mutex_);
  /// [rank]: last status that a rank of another node sent; empty for ranks of this node.
  std::vector<std::string> last_answers_ HVD_GUARDED_BY(mutex_);
  /// Number of the node's latest roll call when this rank's last one ended. Answers to calls up to this number are old.
  std::uint32_t seen_call_ HVD_GUARDED_BY(mutex_) = 0;
};

}  // namespace hvd::comm
