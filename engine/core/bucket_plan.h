// Bucket plan of the static schedule. A bucket holds consecutive gradients: one contiguous range of the gradient arena.
// Each rank computes the plan once, from the order in which backward produces gradients. The ranks compare its hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/types.h"

namespace hvd::core {

struct GradientInfo {
  std::string name;
  std::size_t offset = 0;  ///< start in the arena, in elements; ascends from gradient to gradient, with alignment gaps
  std::size_t count = 0;   ///< number of elements
};

struct Bucket {
  std::size_t first = 0, last = 0;    ///< gradients [first, last)
  std::size_t offset = 0, count = 0;  ///< start and length in the arena, in elements, gaps between gradients included
};

struct BucketPlan {
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<Bucket> buckets;  ///< in execution order
  std::uint64_t hash = 0;       ///< hash of dtype, op, each gradient's name, offset and count, and each bucket
};

struct BucketOptions {
  std::size_t bucket_bytes = std::size_t{25} << 20;       ///< a bucket is closed once it has this many bytes
  std::size_t first_bucket_bytes = std::size_t{1} << 20;  ///< bytes of the first bucket; few, so that it starts early
};

/// Fills each bucket with gradients until it has at least the bytes in `options`; the last bucket may have fewer.
/// Errors: invalid_argument if offsets overlap or do not ascend, if there is no gradient, or if a gradient is empty.
BucketPlan plan_buckets(const std::vector<GradientInfo>& gradients, DataType dtype, ReduceOp op,
                        const BucketOptions& options);

/// Describes the first difference between two ranks' gradient lists in one line that names the tensor and both values;
/// empty if they are equal. Used in the error after a hash mismatch.
std::string first_difference(const std::vector<GradientInfo>& mine, const std::vector<GradientInfo>& theirs);

/// Convert a gradient list to bytes and back, for the exchange after a hash mismatch.
/// Errors: invalid_argument if serialize() did not write `bytes`.
std::vector<std::byte> serialize(const std::vector<GradientInfo>& gradients);
std::vector<GradientInfo> deserialize_gradients(const std::vector<std::byte>& bytes);

}  // namespace hvd::core
