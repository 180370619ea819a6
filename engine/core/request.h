// What ranks agree about: requests for a reduction, and the batches they execute. Plain data; engine/core
// is pure: no threads, clocks, I/O or vendor headers, same input, same bytes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/types.h"

namespace hvd::core {

/// A tensor that one rank has ready for reduction. Ranks match requests by name.
struct Request {
  std::string name;
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<std::int64_t> shape;  ///< empty: a scalar

  /// Errors (both): invalid_argument for a negative extent or a product beyond 64 bits.
  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] std::size_t bytes() const { return count() * size_of(dtype); }
  bool operator==(const Request&) const = default;
};

/// "[64, 3, 7, 7]"
std::string to_text(const std::vector<std::int64_t>& shape);

/// Tensors that every rank executes together, in one agreed order. `error` empty: reduce. Not empty: do
/// not reduce, fail these tensors with this text, the same on all ranks.
struct Batch {
  std::vector<std::string> names;
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t bytes = 0;  ///< payload, without alignment
  std::string error;
  bool operator==(const Batch&) const = default;
};

}  // namespace hvd::core
