// A DataPlane that chooses and runs an algorithm. It uses shared memory within a node, and messages between nodes.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/algorithm/recursive.h"
#include "engine/comm/algorithm/ring.h"
#include "engine/comm/rank_state.h"
#include "engine/comm/shm/node_exchange.h"
#include "engine/comm/shm/node_reduce.h"

namespace hvd::comm {

class GroupData final : public DataPlane {
 public:
  /// Errors: invalid_argument if the algorithm cannot run on this layout.
  GroupData(RankState& state, const CommOptions& options);
  std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override;
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) override;
  void all_reduce_into(void* out, const void* in, std::size_t count, DataType dtype, ReduceOp op,
                       Deadline deadline) override;
  void reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp op,
                      Deadline deadline) override;
  void all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline deadline) override;
  void all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                  Deadline deadline) override;
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
  void choose(const CommOptions& options) override;
  [[nodiscard]] std::string description() const override;

 private:
  /// Algorithms of reduce_scatter() and all_gather().
  enum class Shares : std::uint8_t { kSharedMemory, kRing, kHalving, kPairwise };
  // Pure functions of values that are equal on all ranks, so that all ranks make the same choice.
  [[nodiscard]] Algorithm choose(std::size_t bytes) const;
  [[nodiscard]] Algorithm choose_between_nodes(std::size_t bytes) const;
  [[nodiscard]] bool use_shared_memory() const;
  [[nodiscard]] Shares choose_shares(std::size_t bytes) const;
  /// Records the algorithm that ran, for description().
  void note(std::string_view algorithm, std::string_view detail = "");
  /// Returns the type in which the values of `reduction` are sent between nodes: its own type or CommOptions::wire.
  [[nodiscard]] DataType wire_of(const Reduction& reduction) const;
  /// Returns ", bf16 on the wire"; empty if the values of `reduction` are sent in their own type.
  [[nodiscard]] std::string wire_text(const Reduction& reduction) const;
  [[nodiscard]] Reduction reduction_of(std::size_t count, DataType dtype, ReduceOp op) const;
  void shared_memory(std::byte* data, const Reduction& reduction, const Wait& wait);
  void hierarchical(std::byte* data, const Reduction& reduction, const Wait& wait);
  void hierarchical_small(std::byte* data, const Reduction& reduction, const Wait& wait);
  void hierarchical_block(std::span<std::byte* const> parts, const Reduction& reduction, const Wait& wait);
  void between_nodes(std::byte* data, const Reduction& share, const Wait& wait);
  void library(std::byte* data, const Reduction& reduction, const Wait& wait);
  void over_transport(Algorithm algorithm, const Members& members, std::byte* data, const Reduction& reduction,
                      const Wait& wait);
  /// Returns the address in this process of each local rank's buffer, indexed by local rank. Empty unless all these
  /// buffers are registered.
  std::vector<std::byte*> parts_of(std::byte* data, const Reduction& reduction, const Wait& wait);
  [[nodiscard]] Members everybody() const;

  RankState& state_;
  CommOptions options_;
  NodeReducer reducer_;
  std::shared_ptr<Regions> regions_;
  NodeExchange exchange_;
  std::vector<int> all_ranks_;
  /// [node]: the rank on the node that has this rank's local rank. Empty if this rank reduces no share between nodes.
  std::vector<int> carriers_;
  std::optional<Ring> ring_;
  std::optional<ShareRing> share_ring_;
  std::optional<RecursiveDoubling> doubling_;
  std::optional<RecursiveHalving> halving_;
  // `scratch_` and `wire_` are kept after a failed call: a late message may still be written to them.
  std::vector<std::byte> scratch_;
  std::vector<std::byte> wire_;  ///< a message converted to CommOptions::wire
  void note_shared_memory() {
    if (!std::exchange(ran_shared_memory_, true)) ran_.insert("shm");
  }
  std::set<std::string> ran_;
  bool ran_shared_memory_ = false;
  // Both vectors hold offsets of the current operation. They are members to save allocations.
  std::vector<std::size_t> offsets_, receive_offsets_;
};

}  // namespace hvd::comm
