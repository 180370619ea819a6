// Elementwise reduction kernels: the only place where element types meet arithmetic. Pure functions, any
// thread. AVX-512 and AVX2 are chosen at run time; the bits do not depend on that choice.
//
// Arithmetic: fp16 and bf16 are widened to float, reduced there and rounded once to nearest even per call.
// Integers wrap modulo their width. kAverage accumulates as kSum; the caller divides once, at the end, with
// `divisor` (floats: times the reciprocal, integers: truncating division). min and max keep the first
// operand of equals, so the operand order is part of the result for signed zeros and NaN.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/types.h"

namespace hvd::comm {

/// The arguments of a reduction, equal on all ranks that take part.
struct Reduction {
  std::size_t count;
  DataType dtype;
  ReduceOp op;
  int divisor;  ///< world size for kAverage, else 1
};

/// out[i] = op(...op(op(in[0][i], in[1][i]), in[2][i])...) / divisor for every out in `outputs`.
/// Shapes: all buffers flat (count), `inputs` not empty. Outputs may be inputs (exactly, not shifted).
/// `divisor` is the world size for the last step of kAverage, else 1.
void reduce_many(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, std::size_t count,
                 DataType dtype, ReduceOp op, int divisor = 1);

/// out = op(first, second), elementwise. `out` may be either operand.
void reduce_pair(std::byte* out, const std::byte* first, const std::byte* second, std::size_t count, DataType dtype,
                 ReduceOp op);

/// out = in, one of the two types fp32 and the other fp16 or bf16. To 16 bits it rounds to nearest even, and beyond
/// fp16's range to infinity; to fp32 it is exact. Shapes: flat (count). No overlap.
void convert(std::byte* out, DataType out_type, const std::byte* in, DataType in_type, std::size_t count);

/// data /= divisor, as the last step of kAverage.
void divide(std::byte* data, std::size_t count, DataType dtype, int divisor);

}  // namespace hvd::comm
