// Registered memory of one rank that is still owned by somebody: finds where a buffer lies in it. Owned by the data
// plane and by the memory that it gave; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "engine/comm/shm/node_group.h"
#include "engine/comm/shm/node_reduce.h"

namespace hvd::comm {

/// A run of registered memory, as one rank knows it.
struct Region {
  std::uint64_t number;  ///< from 1, equal on all ranks
  std::size_t bytes;
  NodeMemory memory;
};

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

}  // namespace hvd::comm
