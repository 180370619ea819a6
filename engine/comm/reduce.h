// Elementwise reduction kernels for all element types. Pure functions; any thread. The kernels use the vectors of the
// given level (vector_level.h), which the processor must have; the bits of the result do not depend on the level.
//
// Arithmetic: fp16 and bf16 are converted to float, reduced in float, and rounded once per call to nearest even.
// Integers wrap modulo their width. kAverage accumulates like kSum; the caller passes the world size as `divisor` in
// the last call only. Floats are then multiplied by the reciprocal of `divisor`; integer division truncates. For equal
// operands min and max keep the first operand, so the order of operands matters for signed zeros and NaN.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/types.h"
#include "engine/base/vector_level.h"

namespace hvd::comm {

/// The arguments of a reduction, equal on all ranks that take part.
struct Reduction {
  std::size_t count;
  DataType dtype;
  ReduceOp op;
  int divisor;  ///< world size for kAverage, else 1
};

/// Sets out[i] = op(...op(op(in[0][i], in[1][i]), in[2][i])...) / divisor for every out in `outputs`.
/// Shapes: all buffers flat (count), `inputs` not empty. An output may be the same buffer as an input, but not overlap
/// it partly. `divisor` is the world size for the last step of kAverage, else 1.
void reduce_many(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, std::size_t count,
                 DataType dtype, ReduceOp op, int divisor = 1, VectorLevel level = vector_level());

/// Sets out = op(first, second), elementwise. `out` may be either operand.
void reduce_pair(std::byte* out, const std::byte* first, const std::byte* second, std::size_t count, DataType dtype,
                 ReduceOp op);

/// Converts `in` to the type of `out`. One type must be fp32, the other fp16 or bf16. Conversion to 16 bits rounds to
/// nearest even, and gives infinity for values beyond the range of fp16. Conversion to fp32 is exact. Shapes: both flat
/// (count), no overlap.
void convert(std::byte* out, DataType out_type, const std::byte* in, DataType in_type, std::size_t count,
             VectorLevel level = vector_level());

/// Divides every element by `divisor`, as the last step of kAverage.
void divide(std::byte* data, std::size_t count, DataType dtype, int divisor);

}  // namespace hvd::comm
