// Reduce-scatter, all-gather, all-to-all and broadcast between the ranks of one node: every rank shows its input and
// reads from the others' what is meant for it. One object per rank, used by one thread; borrows the NodeGroup and the
// Regions. See docs/algorithms.md.
//
// Three ways, chosen alike on all ranks from what they posted. Inputs that fit travel in the slots: one
// synchronisation. Inputs in one registered region are read where they lie, and a closing synchronisation keeps their
// owners from changing them too early. Everything else goes block by block through two alternating staging halves, one
// synchronisation per block: whoever arrives at block k + 1 has read block k, so block k + 2 may overwrite it.
//
// Errors of all operations: mismatch, with one text on all ranks and before data move, where ranks disagree; those of
// NodeGroup.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"
#include "engine/comm/shm/node_group.h"
#include "engine/comm/shm/regions.h"

namespace hvd::comm {

class NodeExchange {
 public:
  /// Staging blocks are a fixed number of segments long, or shorter if the node has many ranks.
  NodeExchange(NodeGroup& group, const Regions& regions, std::size_t segment_bytes);
  /// Equal on all ranks, between operations; every operation compares what follows from it. Errors: none.
  void set_segment(std::size_t bytes);

  /// Elements are combined in the order of ranks 0, 1, ..., n - 1, as the all-reduce of NodeReducer does.
  /// Shapes: in (offsets.back()), out (share.count): the own share, of which `out` may be the place in `in`.
  void reduce_scatter(std::byte* out, const std::byte* in, Offsets offsets, const Reduction& share, const Wait& wait);
  /// Shapes: in (own share), out (offsets.back()). `in` may be the own share of `out`.
  void all_gather(std::byte* out, const std::byte* in, Offsets offsets, DataType dtype, const Wait& wait);
  /// Shapes: in (from.back()), out (to.back()). No overlap.
  void all_to_all(std::byte* out, Offsets to, const std::byte* in, Offsets from, DataType dtype, const Wait& wait);
  /// Out of place: reads `in` and copies it nowhere first. Shapes: in, out (whole.count). No overlap.
  void all_reduce(std::byte* out, const std::byte* in, const Reduction& whole, const Wait& wait);
  /// Shape: data (bytes). `root` is a local rank; all ranks of the world are on this node. Up to kNoteBytes the root
  /// does not wait for the others, and learns of a disagreement in its next operation.
  void broadcast(std::byte* data, std::size_t bytes, int root, const Wait& wait);

  /// One synchronisation. Errors: mismatch unless all local ranks name the same size and root, a rank of the world.
  void check_same_root(std::size_t bytes, int root, const Wait& wait);

 private:
  /// What ranks must agree on.
  struct Arguments {
    std::size_t count;  ///< 0: not to be compared
    DataType dtype;
    std::uint32_t op;
  };
  /// Who reads what of whose input, in elements. One object for all operations: small ones would feel the heap.
  struct Plan {
    const std::byte* in = nullptr;   ///< the own input
    std::size_t element = 1;         ///< bytes
    std::size_t table = 0;           ///< entries that every rank posted in front of its input
    std::vector<Range> lanes;        ///< Parts of the own input: one that all ranks read, or one per reader.
    std::vector<Range> wanted;       ///< [source] what this rank reads of its input
    std::vector<std::size_t> given;  ///< [source] its whole input
    std::size_t longest = 0;         ///< lane of any rank
    std::size_t block = 0;           ///< bytes staged at a time
  };
  /// A part of what this rank reads of one source.
  struct Piece {
    const std::byte* from;
    Range range;  ///< in the source's `wanted`
  };
  enum class Way : std::uint8_t { kSlots, kRegistered, kStaged };

  /// What post() does with an input that fits into the slot.
  enum class Input : std::uint8_t {
    kShown,   ///< copies it, unless it is registered and large enough to be read where it lies
    kCopied,  ///< copies it
    kUnread   ///< posts only where it lies: no rank reads it
  };
  void post(std::span<const std::byte> in, const Arguments& arguments, std::span<const std::size_t> table,
            const Wait& wait, Input input = Input::kShown);
  [[nodiscard]] std::span<const std::size_t> posted_table(int local_rank, std::size_t entries) const;
  [[nodiscard]] const std::byte* posted_input(int local_rank, std::size_t entries) const;
  void check_same_counts(std::size_t entries, const Wait& wait) const;
  void check_same_roots(const Wait& wait) const;
  [[nodiscard]] Way way(const Plan& plan) const;
  [[nodiscard]] const Region& posted_region() const;
  /// Where a rank's input lies in `region`, which all have posted.
  [[nodiscard]] std::byte* posted_place(const Region& region, int local_rank) const;
  void broadcast_registered(std::byte* data, std::size_t bytes, int root, const Wait& wait);
  /// Empties plan_ for an operation on `in`.
  Plan& new_plan(const std::byte* in, std::size_t element, std::size_t table);
  /// Calls take(std::span<const Piece>) with one piece of every source, [source], until all of plan_ is taken.
  template <class Take>
  void transfer(const Take& take, const Wait& wait);
  template <class Take>
  void transfer_staged(const Take& take, const Wait& wait);

  NodeGroup& group_;
  const Regions& regions_;
  /// Bytes per staging block, which stay in the second-level cache between the copy in and the copy out. Two ranks on
  /// two cores took 0.77 to 0.87 of the time of blocks of 4 MiB for 16 MiB in ordinary memory.
  std::size_t block_bytes_ = 0;
  std::optional<NodeMemory> staging_;  ///< two blocks per rank
  std::size_t blocks_ = 0;             ///< staged so far, equal on all ranks
  Plan plan_;
  std::vector<Piece> pieces_;             ///< [source]
  std::vector<const std::byte*> inputs_;  ///< [source] of a reduction
  std::vector<std::size_t> table_;        ///< what this rank posts in front of its input
};

}  // namespace hvd::comm
