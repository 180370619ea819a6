// Segmented, pipelined ring all-reduce over point-to-point messages. See docs/algorithms.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "engine/comm/reduce.h"
#include "engine/comm/transport.h"

namespace hvd::comm {

/// Some ranks in an agreed order, and this rank's place among them.
struct Members {
  std::span<const int> ranks;
  std::size_t me = 0;
  [[nodiscard]] std::size_t size() const { return ranks.size(); }
  [[nodiscard]] int right() const { return ranks[(me + 1) % size()]; }
  [[nodiscard]] int left() const { return ranks[(me + size() - 1) % size()]; }
};

class Ring {
 public:
  /// Borrows `transport`. `segment_bytes` is the pipelining unit.
  Ring(Transport& transport, std::size_t segment_bytes) : transport_(transport), segment_bytes_(segment_bytes) {}

  /// In place, equal arguments on all members. Element e of piece c is summed in the order c, c+1, ..., c-1 of the
  /// ring, whatever the segment size. The divisor is applied once, by the piece's last.
  /// `wire`: the type that travels; either the reduction's, or fp16 or bf16 where the reduction's is fp32. Then partial
  /// sums are rounded at each hop and added in fp32, and all members end with the rounded result.
  /// Errors: those of Transport.
  void all_reduce(const Members& members, std::byte* data, const Reduction& reduction, DataType wire, const Wait& wait);

 private:
  struct Schedule;
  void reduce_scatter(const Schedule& schedule, const Wait& wait);
  void all_gather(const Schedule& schedule, const Wait& wait);

  Transport& transport_;
  std::size_t segment_bytes_;
  // These outlive a failed call: a late message may still land in them.
  std::vector<std::byte> scratch_;  ///< segments that have arrived
  std::vector<std::byte> wire_;     ///< the whole message in the wire's type, where that is not the reduction's
  std::vector<float> widened_;      ///< one segment
};

}  // namespace hvd::comm
