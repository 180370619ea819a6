// Reduce-scatter, all-gather, all-to-all and broadcast between the ranks of one node. Every rank makes its input
// readable, and reads its part of the other ranks' inputs. One object per rank, used by one thread; borrows the
// NodeGroup and the Regions. See docs/algorithms.md.
//
// Inputs become readable in one of three ways. All ranks choose the same way, because all use the same posted data:
// - Inputs that fit into the slots are copied there, with one synchronisation.
// - Inputs in one registered region are read in place. A second synchronisation keeps the owners from changing the
//   inputs too early.
// - All other inputs go block by block through two alternating staging halves, with one synchronisation per block. A
//   rank that arrives at block k + 1 has read block k, so block k + 2 may overwrite it.
//
// Errors of all operations: those of NodeGroup; mismatch if ranks disagree, with one text, before any data move.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"
#include "engine/comm/shm/node_group.h"
#include "engine/comm/shm/node_reduce.h"

namespace hvd::comm {

class NodeExchange {
 public:
  /// Staging blocks are a fixed number of segments long, or shorter if the node has many ranks.
  NodeExchange(NodeGroup& group, const Regions& regions, std::size_t segment_bytes);
  /// Call between operations, with the same value on all ranks: every operation compares the resulting block size.
  void set_segment(std::size_t bytes);

  /// Combines elements in the order of ranks 0, 1, ..., n - 1, like the all-reduce of NodeReducer.
  /// Shapes: in (offsets.back()), out (share.count), this rank's share. `out` may be the place of this share in `in`.
  void reduce_scatter(std::byte* out, const std::byte* in, Offsets offsets, const Reduction& share, const Wait& wait);
  /// Shapes: in (this rank's share), out (offsets.back()). `in` may be the place of this share in `out`.
  void all_gather(std::byte* out, const std::byte* in, Offsets offsets, DataType dtype, const Wait& wait);
  /// Shapes: in (from.back()), out (to.back()). No overlap.
  void all_to_all(std::byte* out, Offsets to, const std::byte* in, Offsets from, DataType dtype, const Wait& wait);
  /// Reduces from `in` to `out`, without copying `in` to `out` first. Shapes: in, out (whole.count). No overlap.
  void all_reduce(std::byte* out, const std::byte* in, const Reduction& whole, const Wait& wait);
  /// Shape: data (bytes). `root` is a local rank; all ranks of the world must be on this node. If the message has up to
  /// kNoteBytes, the root does not wait for the other ranks, and reports a disagreement in its next operation.
  void broadcast(std::byte* data, std::size_t bytes, int root, const Wait& wait);

  /// Synchronises once. `root` is a rank of the world. Errors: mismatch unless all ranks give equal arguments.
  void check_same_root(std::size_t bytes, int root, const Wait& wait);

 private:
  /// Arguments that must be equal on all ranks.
  struct Arguments {
    std::size_t count;  ///< 0 if ranks need not agree on the count
    DataType dtype;
    std::uint32_t op;
  };
  /// Says which part of each input every rank reads, in elements. One object for all operations saves heap allocations.
  struct Plan {
    const std::byte* in = nullptr;   ///< this rank's input
    std::size_t element = 1;         ///< bytes per element
    std::size_t table = 0;           ///< entries that every rank posted in front of its input
    std::vector<Range> lanes;        ///< parts of this rank's input: one part that all ranks read, or one per reader
    std::vector<Range> wanted;       ///< [source] the part of the source's input that this rank reads
    std::vector<std::size_t> given;  ///< [source] length of the source's whole input
    std::size_t longest = 0;         ///< length of the longest lane of any rank
    std::size_t block = 0;           ///< bytes staged at a time
  };
  /// A part of the elements that this rank reads from one source.
  struct Piece {
    const std::byte* from;
    Range range;  ///< relative to the source's `wanted`
  };
  enum class Method : std::uint8_t { kSlots, kRegistered, kStaged };

  /// How post() treats an input that fits into the slot.
  enum class Input : std::uint8_t {
    kShown,   ///< copy the input, unless it is registered and longer than kMaxCopied
    kCopied,  ///< copy the input
    kUnread   ///< no rank reads the input: post only the input's place
  };
  void post(std::span<const std::byte> in, const Arguments& arguments, std::span<const std::size_t> table,
            const Wait& wait, Input input = Input::kShown);
  [[nodiscard]] std::span<const std::size_t> posted_table(int local_rank, std::size_t entries) const;
  [[nodiscard]] const std::byte* posted_input(int local_rank, std::size_t entries) const;
  void check_same_counts(std::size_t entries, const Wait& wait) const;
  void check_same_roots(const Wait& wait) const;
  [[nodiscard]] Method method(const Plan& plan) const;
  [[nodiscard]] const Region& posted_region() const;
  /// Returns the address of a rank's input in `region`, the region that all ranks posted.
  [[nodiscard]] std::byte* posted_place(const Region& region, int local_rank) const;
  void broadcast_registered(std::byte* data, std::size_t bytes, int root, const Wait& wait);
  /// Empties plan_ for an operation on `in`.
  Plan& new_plan(const std::byte* in, std::size_t element, std::size_t table);
  /// Calls take(std::span<const Piece>) with one piece per source, in the order of sources, until plan_ is completed.
  template <class Take>
  void transfer(const Take& take, const Wait& wait);
  template <class Take>
  void transfer_staged(const Take& take, const Wait& wait);

  NodeGroup& group_;
  const Regions& regions_;
  /// Bytes per staging block. A block should stay in the second-level cache between the copy in and the copy out. With
  /// such blocks, two ranks on two cores exchanged 16 MiB of ordinary memory in 0.77 to 0.87 of the time that they took
  /// with blocks of 4 MiB.
  std::size_t block_bytes_ = 0;
  std::optional<NodeMemory> staging_;  ///< two blocks per rank
  std::size_t blocks_ = 0;             ///< blocks staged so far, equal on all ranks
  Plan plan_;
  std::vector<Piece> pieces_;             ///< [source]
  std::vector<const std::byte*> inputs_;  ///< [source] inputs of a reduction
  std::vector<std::size_t> table_;        ///< counts that this rank posts in front of its input
};

}  // namespace hvd::comm
