// The arithmetic behind the processor's peak rate: chains of multiply-adds at each vector level, and a chain of integer
// additions that gives the clock. Pure: only time passes.
#pragma once

#include "engine/base/vector_level.h"

namespace hvd::bench {

/// Does `rounds` rounds of independent multiply-adds in registers with vectors of `level`: more of them than all units
/// of a processor have in flight. Without fused multiply-adds (kBase on x86-64) these are multiplications and
/// additions. Returns a number that depends on all of them.
float multiply_add(VectorLevel level, long rounds);

/// Returns the floating-point operations of one round of multiply_add().
double flops_per_round(VectorLevel level) noexcept;

/// Does `count` integer additions of which each needs the sum before it. An addition takes one clock cycle on all
/// processors: both summands are in registers, so that no processor can do it while it renames registers.
long dependent_additions(long count);

/// Returns how many multiply-adds a core of this architecture begins per cycle at most: 2 on x86, 4 on Arm. Many begin
/// half of that. Pure.
double multiply_add_units() noexcept;

/// Returns the FLOP/s of one core at `clock` Hz that begins multiply_add_units() multiply-adds with vectors of `level`
/// in each cycle. Pure.
double most_flops(VectorLevel level, double clock) noexcept;

}  // namespace hvd::bench
