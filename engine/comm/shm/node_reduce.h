// Reductions and broadcasts between the ranks of one node, through memory that all of them can access, and the list of
// the memory that a rank has registered for them. See docs/algorithms.md. One object per rank, used by one thread; a
// NodeReducer borrows the NodeGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"
#include "engine/comm/shm/node_group.h"

namespace hvd::comm {

class NodeReducer {
 public:
  /// The place of a rank's data: number of a registered region, and offset in that region in bytes. Region 0: the data
  /// are not in a registered region.
  struct Place {
    std::uint64_t region = 0;
    std::uint64_t offset = 0;
  };

  /// `largest_group` is the number of ranks on the fullest node of the world, so that all nodes stage equal blocks.
  NodeReducer(NodeGroup& group, int largest_group, std::size_t segment_bytes);

  /// Sets the maximum bytes of a chunk that a rank claims. Call between operations, with the same value on all ranks.
  void set_segment(std::size_t bytes) { segment_bytes_ = bytes; }

  /// For data of up to kSlotBytes. Every rank copies its data into its slot and sums all slots itself, which takes one
  /// synchronisation. Errors of all methods: mismatch if ranks disagree; those of NodeGroup.
  void reduce_small(std::byte* data, const Reduction& reduction, const Wait& wait);
  /// Like reduce_small(), but only local rank 0 gets the sum, which is not divided.
  void reduce_small_to_leader(std::byte* data, const Reduction& reduction, const Wait& wait);
  void broadcast_small(std::byte* data, std::size_t bytes, int root, const Wait& wait);

  /// Tells the other ranks the place of this rank's data, and returns the places of all ranks' data by local rank. The
  /// span is valid until this rank's next call. Data that are not registered are copied into the slot if they fit.
  std::span<const Place> exchange_places(Place mine, const std::byte* data, const Reduction& reduction,
                                         const Wait& wait);
  /// Like reduce_small(); call right after exchange_places(). Synchronises again only if some data are registered.
  void reduce_posted(std::byte* data, const Reduction& reduction, const Wait& wait);

  /// `parts[r]` is the address of local rank r's buffer in this rank's mapping. Every running rank claims chunks, so a
  /// rank that loses its processor slows the operation but does not stall it. Call right after exchange_places().
  void reduce_in_place(std::span<std::byte* const> parts, const Reduction& reduction, const Wait& wait);
  /// For any memory. The data pass through two staging blocks per rank, as a pipeline.
  void reduce_staged(std::byte* data, const Reduction& reduction, const Wait& wait);
  void broadcast_staged(std::byte* data, std::size_t bytes, int root, const Wait& wait);

  /// Returns the address of `half` (0 or 1) of `local_rank`'s staging memory; each half has block_bytes() bytes.
  /// Collective on first use.
  std::byte* staging(int local_rank, std::size_t half, const Wait& wait);
  [[nodiscard]] std::size_t block_bytes() const { return block_bytes_; }

 private:
  void post(std::byte* data, const Reduction& reduction, const Wait& wait);
  void sum_slots(std::byte* data, const Reduction& reduction, int divisor);

  NodeGroup& group_;
  std::size_t segment_bytes_;
  std::size_t block_bytes_;
  std::optional<NodeMemory> staging_;
  std::uint32_t blocks_ = 0;  ///< staging blocks filled so far, equal on all ranks
  std::vector<Place> places_;
  std::vector<const std::byte*> inputs_;  ///< kept, because an allocation would slow down small messages
};

/// A contiguous block of registered memory, as mapped by one rank.
struct Region {
  std::uint64_t number;  ///< from 1, equal on all ranks
  std::size_t bytes;
  NodeMemory memory;
};

/// Lists one rank's registered memory that is in use, and finds the region that contains a buffer. The data plane and
/// the RegisteredMemory objects that it returned own this list together.
class Regions {
 public:
  std::uint64_t add(std::size_t bytes, NodeMemory memory);
  void remove(std::uint64_t number) { regions_.erase(number); }
  [[nodiscard]] const Region* find(std::uint64_t number) const;
  /// Returns the place of [data, data + bytes) in `local_rank`'s part of a region, or region 0 if no region contains
  /// that range.
  [[nodiscard]] NodeReducer::Place locate(const std::byte* data, std::size_t bytes, int local_rank) const;

 private:
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Region> regions_;
};

}  // namespace hvd::comm
