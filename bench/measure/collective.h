// The collective operations that `hvd_bench coll` and bench/peers measure. (core::Collective also has groups of
// tensors, which have no size of their own.)
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hvd::bench {

/// The numbers are part of the C layout of peers::Call.
enum class MeasuredCollective : std::int32_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kBarrier
};
inline constexpr std::array<std::string_view, 6> kCollectiveNames{"all_reduce", "reduce_scatter", "all_gather",
                                                                  "all_to_all", "broadcast",      "barrier"};

}  // namespace hvd::bench
