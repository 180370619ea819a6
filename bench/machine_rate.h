// Short measurements of what the processor can do, for doctor: a fraction of a second each, on `threads`
// threads of this process. Nothing else should run meanwhile.
#pragma once

#include "engine/base/types.h"

namespace hvd::bench {

/// Fused multiply-adds in registers, fp32, widest vectors of this processor: the peak at the clock it holds.
/// FLOP/s of all threads together.
double peak_flops(int threads);

/// memcpy between blocks that do not fit into caches, bytes read plus bytes written per second.
double copy_bandwidth(int threads);

/// The fastest of the forward and backward passes of a 3 x 3 convolution of 256 channels through the compute
/// backend, FLOP/s. 0 when the backend cannot compute in `type`.
double matrix_rate(DataType type, int threads);

}  // namespace hvd::bench
