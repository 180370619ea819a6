// Lists one rank's registered memory that is in use, and finds the region that contains a buffer. The data plane and
// the RegisteredMemory objects that it returned own this list together. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "engine/comm/shm/node_group.h"
#include "engine/comm/shm/node_reduce.h"

namespace hvd::comm {

/// A contiguous block of registered memory, as mapped by one rank.
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
  /// Returns the place of [data, data + bytes) in `local_rank`'s part of a region, or region 0 if no region contains
  /// that range.
  [[nodiscard]] NodeReducer::Place locate(const std::byte* data, std::size_t bytes, int local_rank) const;

 private:
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Region> regions_;
};

}  // namespace hvd::comm
