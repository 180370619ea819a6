// Short measurements of what the processor can do, for doctor. Each takes a fraction of a second and uses `threads`
// threads of this process. Nothing else should run at the same time.
#pragma once

#include "engine/base/types.h"

namespace hvd::bench {

/// Rate of fp32 fused multiply-adds in registers with the widest vectors of this processor: the peak at the clock that
/// it sustains. FLOP/s of all threads together.
double peak_flops(int threads);

/// Rate of memcpy between blocks that do not fit into caches: bytes read plus bytes written per second.
double copy_bandwidth(int threads);

/// FLOP/s of the fastest of the forward and backward passes of a 3 x 3 convolution of 256 channels, on the compute
/// backend. 0 if the backend cannot compute in `type`.
double matrix_rate(DataType type, int threads);

}  // namespace hvd::bench
