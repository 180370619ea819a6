// What `hvd_bench coll` times: one collective operation of one size, type and reduction, and how nccl-tests names,
// counts and rates it. Plain data and pure functions.
// Source of counts and bandwidths: the page on performance of NVIDIA's nccl-tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/types.h"
#include "engine/core/bucket_plan.h"

namespace hvd::bench::coll {

enum class Collective : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kBarrier };
inline constexpr std::array kCollectives{Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                         Collective::kAllToAll,  Collective::kBroadcast,     Collective::kBarrier};

/// "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier".
std::string_view name(Collective collective) noexcept;
/// Whether the operation does arithmetic, so that the reduction matters.
bool reduces(Collective collective) noexcept;
/// Whether the data plane can do it with input and output in the same memory, or in different memory. A barrier has no
/// memory and counts as out of place.
bool has_in_place(Collective collective) noexcept;
bool has_out_of_place(Collective collective) noexcept;

/// nccl-tests' names: "float", "half", "bfloat16", "int8", ...; "sum", "prod", "max", "min", "avg". Types that
/// nccl-tests lacks have ours.
std::string_view nccl_name(DataType type) noexcept;
std::string_view nccl_name(ReduceOp op) noexcept;
/// The inverse; also takes our own names ("fp32", "average"). Errors: invalid_argument that lists the names.
DataType parse_type(std::string_view where, std::string_view text);
ReduceOp parse_op(std::string_view where, std::string_view text);

/// Every buffer begins at a multiple of this: a cache line, and the widest vector.
inline constexpr std::size_t kBufferAlignment = 64;

/// Whether the operation's input or output consists of shares, one for each rank.
bool has_shares(Collective collective) noexcept;

struct Problem {
  Collective collective = Collective::kAllReduce;
  /// Elements: of all_reduce and broadcast all, else of one rank's share, the smallest where they differ. 0 for a
  /// barrier.
  std::size_t count = 0;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  bool ragged = false;  ///< rank r's share has r + 1 times `count` elements

  /// Elements of rank `rank`'s share in reduce_scatter and all_gather; those before it, in the order of ranks; all.
  [[nodiscard]] std::size_t share(int rank) const;
  [[nodiscard]] std::size_t before(int rank) const { return total(rank); }
  [[nodiscard]] std::size_t total(int ranks) const;
  /// [rank]: the shares.
  [[nodiscard]] std::vector<std::size_t> shares(int ranks) const;
  /// Elements that rank `from` sends to rank `to` in all_to_all. If ragged, the ranks' shares in turn, so that all
  /// ranks send as much and receive as much.
  [[nodiscard]] std::size_t message(int from, int to, int ranks) const;

  /// Elements of the whole input and the whole output of one rank in a world of `ranks`, the largest over ranks.
  [[nodiscard]] std::size_t in_count(int ranks) const;
  [[nodiscard]] std::size_t out_count(int ranks) const;
  /// nccl-tests' size: bytes of the larger of the two.
  [[nodiscard]] std::size_t bytes(int ranks) const;
  /// Bytes that one rank's buffers take, the largest over ranks. In place, the smaller lies inside the larger.
  [[nodiscard]] std::size_t footprint(int ranks) const;
  bool operator==(const Problem&) const = default;
};

/// As nccl-tests prints them: the root, -1 for an operation without one; the reduction, "none" for one that has none.
int root_of(const Problem& problem) noexcept;
std::string_view reduction_name(const Problem& problem) noexcept;

/// How to form problems from sizes.
struct ProblemForm {
  bool in_place = false;
  bool ragged = false;  ///< where the operation has shares
};
/// The problem of about `bytes`: rounded down to shares of whole elements, at least one element a share. 0 bytes make a
/// problem without elements.
Problem problem_of(Collective collective, std::size_t bytes, DataType type, ReduceOp op, ProblemForm form, int ranks);

/// Bus bandwidth over algorithm bandwidth: all_reduce 2 (n - 1) / n, broadcast 1, barrier 0, others (n - 1) / n.
double bus_factor(Collective collective, int ranks) noexcept;

/// First, last and the step between them: sizes in bytes, or a factor.
struct SizeRange {
  std::size_t first = 0, last = 0;
  std::size_t step = 0;    ///< bytes; used where it is not 0
  std::size_t factor = 0;  ///< else at least 2
};
/// The sizes of a sweep, ascending. Errors: invalid_argument for first > last, first = 0 with a factor, a factor below
/// 2, or thousands of sizes.
std::vector<std::size_t> sizes_of(const SizeRange& range);

/// The gradient buckets of a network: each size once, in bytes and ascending, and how many buckets have it.
struct BucketSizes {
  std::vector<std::size_t> sizes, repeats;
};
/// As the static schedule would make them of gradients in `type`. Errors: invalid_argument for an unknown model.
BucketSizes bucket_sizes(const std::string& model, DataType type, const core::BucketOptions& options);

}  // namespace hvd::bench::coll
