// Short measurements of the processor's speed, for `hvd_bench doctor`. Each measurement takes a fraction of a second
// and uses `threads` threads of this process. Nothing else should run at the same time.
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

}  // namespace hvd::bench
