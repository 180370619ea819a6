// What ranks agree about: requests for a collective operation, and the batches they execute. Plain data; engine/core
// is pure: no threads, clocks, I/O or vendor headers, same input, same bytes out.
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
  kGroupedAllReduce,  ///< several tensors as one request: they are reduced together, or none is
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kBarrier,
};
inline constexpr std::uint8_t kCollectives = 7;
/// "all_reduce", "grouped_all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier".
std::string_view name(Collective kind) noexcept;

/// Parameters of an operation other than data type and reduction. Tensors of one batch have equal terms.
struct Terms {
  Collective kind = Collective::kAllReduce;
  std::int32_t root = 0;  ///< broadcast; 0 for all others
  double prescale = 1;    ///< all_reduce, reduce_scatter: each rank's addend is multiplied by this
  double postscale = 1;   ///< all_reduce, reduce_scatter: the result is multiplied by this
  bool operator==(const Terms&) const = default;
};

/// A tensor that one rank has ready. Ranks match requests by name.
struct Request {
  std::string name;
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;  ///< kSum where nothing is reduced
  /// Empty: a scalar. all_gather: the first extent (rows) may differ between ranks. all_to_all: the shape of one row;
  /// the numbers of rows are exchanged when the operation runs. grouped_all_reduce: of each tensor the number of
  /// extents, then its extents; see append_shape().
  std::vector<std::int64_t> shape;
  Terms terms = {};

  /// Errors (all): invalid_argument for a negative extent or a product beyond 64 bits.
  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] std::size_t bytes() const { return count() * size_of(dtype); }
  /// Errors: invalid_argument, too, for values that do not make sense for the kind of operation.
  void check() const;
  /// Returns true if another rank's `other` may be executed together with this: equal but for the rows of an
  /// all_gather.
  [[nodiscard]] bool matches(const Request& other) const;
  bool operator==(const Request&) const = default;
};

/// Elements of a tensor `name`. Errors: those of Request::count().
std::size_t count_of(const std::vector<std::int64_t>& shape, std::string_view name);

/// Adds one tensor's shape to that of a grouped_all_reduce.
void append_shape(std::vector<std::int64_t>& group, std::span<const std::int64_t> shape);
/// The shapes of a group's tensors. Errors: invalid_argument if append_shape() cannot have made `group`.
std::vector<std::vector<std::int64_t>> shapes_of(const std::vector<std::int64_t>& group);

/// Bytes of the result of the all_gather `request`, to which rank r contributes rows[r].
/// Errors: invalid_argument for a negative number of rows or a sum beyond 64 bits.
std::size_t gathered_bytes(const Request& request, std::span<const std::int64_t> rows);

/// "[64, 3, 7, 7]"
std::string to_text(const std::vector<std::int64_t>& shape);

/// What a rank calls a tensor; it comes back in Batch::tags and is told to nobody.
using Tag = std::uint32_t;

/// Tensors that every rank executes together, in one agreed order. `error` empty: execute. Not empty: do
/// not, but fail these tensors with this text, the same on all ranks. Only all_reduce has more than one name.
struct Batch {
  std::vector<std::string_view> names;  ///< owned by who made the batch: CycleDone::batches, fuse()
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t bytes = 0;  ///< payload, without alignment; all_gather: of all ranks
  std::string error = {};
  Terms terms = {};
  std::vector<std::int64_t> rows = {};  ///< all_gather: [rank]
  std::vector<Tag> tags = {};           ///< [name], this rank's own
  bool operator==(const Batch&) const = default;
};

}  // namespace hvd::core
