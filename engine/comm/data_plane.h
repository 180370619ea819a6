// DataPlane that picks and runs an algorithm: shared memory within a node, messages between nodes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/comm/algorithm/recursive_doubling.h"
#include "engine/comm/algorithm/ring.h"
#include "engine/comm/core.h"
#include "engine/comm/shm/node_reduce.h"

namespace hvd::comm {

/// A run of registered memory, as one rank knows it.
struct Region {
  std::uint64_t number;  ///< from 1, equal on all ranks
  std::size_t bytes;
  NodeMemory memory;
};

/// Regions of one rank that are still owned by somebody.
class Regions {
 public:
  std::uint64_t add(std::size_t bytes, NodeMemory memory);
  void remove(std::uint64_t number) { regions_.erase(number); }
  [[nodiscard]] const Region* find(std::uint64_t number) const;
  /// Where [data, data + bytes) lies if all of it is in local rank `local_rank`'s part of a region.
  [[nodiscard]] NodeReducer::Place locate(const std::byte* data, std::size_t bytes, int local_rank) const;

 private:
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Region> regions_;
};

class GroupData final : public DataPlane {
 public:
  /// Errors: invalid_argument if the algorithm cannot run on this layout.
  GroupData(Core& core, const CommOptions& options);
  std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override;
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) override;
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
  [[nodiscard]] std::string description() const override;

 private:
  /// The decision, apart from the deed. Depends only on what is equal on all ranks.
  [[nodiscard]] Algorithm choose(std::size_t bytes) const;
  void shared_memory(std::byte* data, const Reduction& reduction, const Wait& wait);
  void hierarchical(std::byte* data, const Reduction& reduction, const Wait& wait);
  void hierarchical_small(std::byte* data, const Reduction& reduction, const Wait& wait);
  void hierarchical_block(std::span<std::byte* const> parts, const Reduction& reduction, const Wait& wait);
  void between_nodes(std::byte* data, const Reduction& share, std::size_t carriers, const Wait& wait);
  void library(std::byte* data, const Reduction& reduction, const Wait& wait);
  void flat_ring(std::byte* data, const Reduction& reduction, const Wait& wait);
  /// Everybody's buffer mapped here, if all are registered; else empty.
  std::vector<std::byte*> parts_of(std::byte* data, const Reduction& reduction, const Wait& wait);
  [[nodiscard]] Members everybody() const;

  Core& core_;
  CommOptions options_;
  NodeReducer reducer_;
  std::shared_ptr<Regions> regions_;
  std::vector<int> all_ranks_;
  std::vector<int> carriers_;  ///< [node] rank of my local rank there, if I carry a share between nodes
  std::optional<Ring> ring_;
  std::optional<RecursiveDoubling> doubling_;
  std::set<std::string> ran_;
};

}  // namespace hvd::comm
