// A problem of `hvd_bench coll`: one collective operation of one size, type and reduction, with the names, counts and
// bandwidths of nccl-tests. Plain data and pure functions.
// Source of counts and bandwidths: the performance page of NVIDIA's nccl-tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/measure/collective.h"
#include "engine/base/types.h"
#include "engine/core/bucket_plan.h"
#include "models/replay/replay.h"

namespace hvd::bench::coll {

inline constexpr std::array kMeasuredCollectives{MeasuredCollective::kAllReduce, MeasuredCollective::kReduceScatter,
                                                 MeasuredCollective::kAllGather, MeasuredCollective::kAllToAll,
                                                 MeasuredCollective::kBroadcast, MeasuredCollective::kBarrier};

std::string_view name(MeasuredCollective collective) noexcept;
/// Returns true if the operation does arithmetic. Problem::op matters only for these operations.
bool reduces(MeasuredCollective collective) noexcept;
/// has_in_place() returns true if the data plane supports the operation with input and output in the same memory (in
/// place), has_out_of_place() if it supports them in different memory. A barrier has no memory and counts as out of
/// place.
bool has_in_place(MeasuredCollective collective) noexcept;
bool has_out_of_place(MeasuredCollective collective) noexcept;

/// The names of nccl-tests in the order of nccl-tests, and "int16", which nccl-tests does not have.
inline constexpr std::array<std::pair<DataType, std::string_view>, kDataTypes> kTypeNames{
    {{DataType::kI8, "int8"},
     {DataType::kU8, "uint8"},
     {DataType::kI16, "int16"},
     {DataType::kI32, "int32"},
     {DataType::kI64, "int64"},
     {DataType::kF16, "half"},
     {DataType::kBF16, "bfloat16"},
     {DataType::kF32, "float"},
     {DataType::kF64, "double"}}};
inline constexpr std::array<std::pair<ReduceOp, std::string_view>, kReduceOps> kOpNames{{{ReduceOp::kSum, "sum"},
                                                                                         {ReduceOp::kProduct, "prod"},
                                                                                         {ReduceOp::kMax, "max"},
                                                                                         {ReduceOp::kMin, "min"},
                                                                                         {ReduceOp::kAverage, "avg"}}};
std::string_view nccl_name(DataType type) noexcept;
std::string_view nccl_name(ReduceOp op) noexcept;

/// Every buffer begins at a multiple of this many bytes, the size of a cache line and of the widest vector.
inline constexpr std::size_t kBufferAlignment = 64;

/// Returns true if the operation's input or output consists of shares, one for each rank.
bool has_shares(MeasuredCollective collective) noexcept;

struct Problem {
  MeasuredCollective collective = MeasuredCollective::kAllReduce;
  /// all_reduce and broadcast: number of elements. barrier: 0. Operations with shares: number of elements in the
  /// smallest share.
  std::size_t count = 0;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  bool ragged = false;  ///< rank r's share has (r + 1) * `count` elements

  /// For reduce_scatter and all_gather: share() returns the number of elements in the share of `rank`, before() the sum
  /// over the shares of all lower ranks, and total() the sum over the shares of all ranks.
  [[nodiscard]] std::size_t share(int rank) const;
  [[nodiscard]] std::size_t before(int rank) const { return total(rank); }
  [[nodiscard]] std::size_t total(int ranks) const;
  /// Returns the number of elements in every share, [rank].
  [[nodiscard]] std::vector<std::size_t> shares(int ranks) const;
  /// Returns the number of elements that rank `from` sends to rank `to` in all_to_all. If ragged, each rank sends
  /// messages of all share sizes, rotated so that every rank sends and receives the same total.
  [[nodiscard]] std::size_t message(int from, int to, int ranks) const;

  /// in_count() returns the number of elements in one rank's whole input, and out_count() in its whole output, in a
  /// world of `ranks`. Both return the maximum over ranks.
  [[nodiscard]] std::size_t in_count(int ranks) const;
  [[nodiscard]] std::size_t out_count(int ranks) const;
  /// The size that nccl-tests prints: bytes of the input or of the output, whichever is larger.
  [[nodiscard]] std::size_t bytes(int ranks) const;
  /// Bytes of one rank's buffers; the maximum over ranks. In place, the smaller buffer lies inside the larger one.
  [[nodiscard]] std::size_t footprint(int ranks) const;
  bool operator==(const Problem&) const = default;
};

/// Return the root and the reduction as nccl-tests prints them: -1 if there is no root, "none" if there is no
/// reduction.
int root_of(const Problem& problem) noexcept;
std::string_view reduction_name(const Problem& problem) noexcept;

struct ProblemForm {
  bool in_place = false;
  bool ragged = false;  ///< has an effect only if the operation has shares
};
/// Returns a problem of about `bytes`, rounded down to shares of whole elements, with at least one element per share.
/// For 0 bytes the problem has no elements.
Problem problem_of(MeasuredCollective collective, std::size_t bytes, DataType type, ReduceOp op, ProblemForm form,
                   int ranks);

/// Returns bus bandwidth / algorithm bandwidth. With n ranks this is 2 (n - 1) / n for all_reduce, 1 for broadcast, 0
/// for barrier, and (n - 1) / n for other collectives.
double bus_factor(MeasuredCollective collective, int ranks) noexcept;

/// The sizes of a sweep, in bytes. Sizes grow by a step or by a factor.
struct SizeRange {
  std::size_t first = 0, last = 0;
  std::size_t step = 0;    ///< bytes; 0: sizes grow by `factor`
  std::size_t factor = 0;  ///< at least 2; used if `step` is 0
};
/// Returns the sizes of a sweep, ascending. Errors: invalid_argument for first > last, first = 0 with a factor, a
/// factor below 2, or more than kMaxSizes sizes.
std::vector<std::size_t> sizes_of(const SizeRange& range);

/// `sizes`: the sizes of a network's gradient buckets in bytes, ascending, each size once. `repeats`: the number of
/// buckets of each size.
struct BucketSizes {
  std::vector<std::size_t> sizes, repeats;
};
/// Returns the gradients of a network as they lie in the arena of a training on CPUs. Errors: invalid_argument if the
/// model is unknown.
std::vector<core::GradientInfo> gradients_of(const std::string& model);
/// Returns the gradients of a recorded step as they lie in the arena of its replay.
std::vector<core::GradientInfo> gradients_of(const models::ReplayProfile& profile);
/// Returns the sizes of the static schedule's buckets for gradients in `type`. Errors: invalid_argument for more than
/// kMaxSizes sizes.
BucketSizes bucket_sizes(const std::vector<core::GradientInfo>& gradients, DataType type,
                         const core::BucketOptions& options);

}  // namespace hvd::bench::coll
