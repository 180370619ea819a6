// Short measurements of the processor's speed, for `hvd_bench doctor`, and the arithmetic behind them. Each measurement
// takes a fraction of a second and uses `threads` threads of this process. Nothing else should run at the same time.
#pragma once

#include "engine/base/types.h"
#include "engine/base/vector_level.h"

namespace hvd::bench {

struct PeakRate {
  double flops = 0;  ///< FLOP/s of all threads together
  double clock = 0;  ///< Hz, measured between the runs for `flops`
};
/// Returns the peak rate of fp32 multiply-adds in registers with the vectors of `level`, at the clock that the
/// processor sustains.
PeakRate peak_rate(int threads, VectorLevel level);

/// Returns the rate of memcpy between blocks that do not fit into caches: bytes read plus bytes written per second.
double copy_bandwidth(int threads);

/// Returns the FLOP/s that the compute backend reaches in a direct 3 x 3 convolution of 256 channels, in the fastest of
/// the forward and backward passes. 0 if the backend cannot compute in `type`.
double matrix_rate(DataType type, int threads);

// The arithmetic behind the processor's peak rate (vector_peak.cpp): chains of multiply-adds at each vector level, and
// a chain of integer additions that gives the clock. Pure: only time passes.

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
