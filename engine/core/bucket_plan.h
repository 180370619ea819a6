// The static schedule: buckets of consecutive gradients, computed once from the gradient-production order,
// hashed, and compared across ranks at start. A bucket is one contiguous range of the gradient arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/types.h"

namespace hvd::core {

struct GradientInfo {
  std::string name;
  std::size_t offset = 0;  ///< elements from the start of the arena; ascending, gaps allowed (alignment)
  std::size_t count = 0;   ///< elements
};

struct Bucket {
  std::size_t first = 0, last = 0;    ///< gradients [first, last)
  std::size_t offset = 0, count = 0;  ///< elements of the arena, alignment gaps between members included
};

struct BucketPlan {
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<Bucket> buckets;  ///< in execution order
  std::uint64_t hash = 0;       ///< over dtype, op, every name, offset, count and every bucket
};

struct BucketOptions {
  std::size_t bucket_bytes = std::size_t{25} << 20;       ///< close a bucket when it has at least this
  std::size_t first_bucket_bytes = std::size_t{1} << 20;  ///< smaller, so that communication starts early
};

/// Every bucket but the last has at least the bytes asked for, and no more members than that takes.
/// Errors: invalid_argument when offsets overlap or are not ascending, when there is no gradient, or one
/// without elements.
BucketPlan plan_buckets(const std::vector<GradientInfo>& gradients, DataType dtype, ReduceOp op,
                        const BucketOptions& options);

/// First difference between two ranks' gradient lists, as one line that names the tensor and both values;
/// empty if equal. For the error after a hash mismatch.
std::string first_difference(const std::vector<GradientInfo>& mine, const std::vector<GradientInfo>& theirs);

/// Compact bytes of a gradient list, and back, for the exchange after a hash mismatch.
/// Errors: invalid_argument when `bytes` are not what serialize() wrote.
std::vector<std::byte> serialize(const std::vector<GradientInfo>& gradients);
std::vector<GradientInfo> deserialize_gradients(const std::vector<std::byte>& bytes);

}  // namespace hvd::core
