// Requests for collective operations, and the batches that all ranks execute after they agreed on requests. Plain data.
// engine/core is pure: it has no threads, clocks, I/O or vendor headers, and the same input gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/types.h"

namespace hvd::core {

enum class Collective : std::uint8_t {
  kAllReduce,
  kGroupedAllReduce,  ///< several tensors in one request: either all of them are reduced, or none
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kBarrier,
};
inline constexpr std::uint8_t kCollectives = 7;
/// Returns "all_reduce", "grouped_all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all" or "barrier".
std::string_view name(Collective kind) noexcept;

/// The parameters of an operation, without its data type and reduction. Tensors of one batch have equal terms.
struct Terms {
  Collective kind = Collective::kAllReduce;
  std::int32_t root = 0;  ///< rank that broadcasts; 0 for all other operations
  double prescale = 1;    ///< all_reduce, reduce_scatter: each rank multiplies its input by this factor
  double postscale = 1;   ///< all_reduce, reduce_scatter: the result is multiplied by this factor
  bool operator==(const Terms&) const = default;
};

/// A tensor that one rank has ready. Ranks match requests by name.
struct Request {
  std::string name;
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;  ///< kSum if the operation has no reduction
  /// Empty: a scalar. all_gather: the first extent (rows) may differ between ranks. all_to_all: the shape of one row;
  /// the ranks exchange the numbers of rows when the operation runs. grouped_all_reduce: for each tensor the number of
  /// its extents, then the extents; see append_shape().
  std::vector<std::int64_t> shape;
  Terms terms = {};

  /// Errors of count(), bytes() and check(): invalid_argument for a negative extent or a product beyond 64 bits.
  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] std::size_t bytes() const { return count() * size_of(dtype); }
  /// Checks this request. Errors: also invalid_argument if a member has a value that the operation does not allow.
  void check() const;
  /// Returns true if this request and another rank's request `other` are equal, except for the rows of an all_gather.
  /// Such requests can be executed as one operation.
  [[nodiscard]] bool matches(const Request& other) const;
  bool operator==(const Request&) const = default;
};

/// Returns the number of elements of a tensor. `name` names it in errors. Errors: those of Request::count().
std::size_t count_of(const std::vector<std::int64_t>& shape, std::string_view name);

/// Appends one tensor's shape to `group`, the shape of a grouped_all_reduce.
void append_shape(std::vector<std::int64_t>& group, std::span<const std::int64_t> shape);
/// Returns the shapes of a group's tensors. Errors: invalid_argument if append_shape() cannot have made `group`.
std::vector<std::vector<std::int64_t>> shapes_of(const std::vector<std::int64_t>& group);

/// Returns the bytes of the result of the all_gather `request`, to which rank r contributes rows[r] rows.
/// Errors: invalid_argument for a negative number of rows or a sum beyond 64 bits.
std::size_t gathered_bytes(const Request& request, std::span<const std::int64_t> rows);

/// Returns a text like "[64, 3, 7, 7]".
std::string to_text(const std::vector<std::int64_t>& shape);

/// A number that the submitter chooses for a tensor. Batch::tags returns it; it is not sent to other ranks.
using Tag = std::uint32_t;

/// Tensors that every rank executes together, in one agreed order. If `error` is empty, execute the batch. Otherwise
/// fail the tensors with the text `error`, which is the same on all ranks. Only an all_reduce batch has several names.
struct Batch {
  std::vector<std::string_view> names;  ///< the batch does not own the text; see CycleDone::batches
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t bytes = 0;  ///< payload without alignment; all_gather: sum over all ranks
  std::string error = {};
  Terms terms = {};
  std::vector<std::int64_t> rows = {};  ///< [rank]: the ranks' rows in an all_gather; else empty
  std::vector<Tag> tags = {};           ///< the tags of `names`, which are chosen by this rank
  bool operator==(const Batch&) const = default;
};

}  // namespace hvd::core
