// A ControlPlane that uses the node's shared segment within a node, and messages between the nodes' leaders.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "engine/comm/algorithm/recursive.h"
#include "engine/comm/rank_state.h"

namespace hvd::comm {

class GroupControl final : public ControlPlane {
 public:
  explicit GroupControl(RankState& state);
  void all_reduce_bits(std::span<std::uint64_t> words, BitOp op, Deadline deadline) override;
  std::vector<Bytes> gather(std::span<const std::byte> message, Deadline deadline) override;
  Bytes broadcast(std::span<const std::byte> message, int root, Deadline deadline) override;
  void barrier(Deadline deadline) override;
  std::vector<std::optional<std::string>> roll_call(std::string_view status,
                                                    std::chrono::milliseconds patience) override;
  void answer_roll_call(std::string_view status) override;
  void abort(std::string_view reason) noexcept override;
  void throw_if_aborted() override { state_.faults.throw_if_aborted(); }
  void look_for_dead() override { state_.faults.look_for_dead(); }
  void on_stall(const OnStall& told) override { state_.faults.on_stall(told); }

 private:
  void reduce_block(std::span<std::uint64_t> words, BitOp op, const Wait& wait);
  /// On the node's leader: returns the messages of this node's ranks. On other ranks: returns an empty vector.
  std::vector<Bytes> gather_in_node(std::span<const std::byte> message, const Wait& wait);
  /// Copies `message` of local rank `root` to the other ranks of the node.
  void broadcast_in_node(Bytes& message, int root, const Wait& wait);
  void send_message(int to, std::span<const std::byte> message, const Wait& wait);
  /// Call before memory of `length` bytes is allocated for a message between nodes. Errors: mismatch, also sent to the
  /// peers, if `length` is more than `most` and therefore wrong.
  void check_length(std::uint64_t length, std::uint64_t most, int from, const Wait& wait);

  RankState& state_;
  std::vector<int> leaders_;  ///< [node]
  Members leader_members_;
  std::optional<RecursiveDoubling> doubling_;  ///< between leaders; empty if there is only one node
  /// [node]: lengths that gather() receives. Kept after a failed call: a late message may still be written here.
  std::vector<std::uint64_t> lengths_;
};

}  // namespace hvd::comm
