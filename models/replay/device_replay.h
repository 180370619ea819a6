// A replay on a GPU. The gradients lie in device memory, and a timer on the compute stream makes each gradient ready
// when it was ready in the recorded run, so that reductions, streams and graphs are those of training. It needs no
// cuDNN. It has never run on a GPU (docs/gpu.md).
#pragma once

#include <functional>
#include <memory>

#include "models/device_step.h"
#include "models/replay/replay.h"

namespace hvd::models {

/// Makes a step that does on `runtime`'s GPU what the step of make_replay_step() does on a CPU. The wait for each
/// gradient is a kernel of one block, and the gradient's values are a copy, so a step can be captured. load() gives
/// each step its factor. enqueue_forward_backward() calls `paced`, unless it is null. If `paced` returns true, the host
/// sleeps until each gradient's recorded submit time, where that differs from the ready time, before it enqueues the
/// gradient.
/// Errors: invalid_argument for a profile without gradients; unsupported if a wait is longer than gpu::kMaxTimerWait,
/// or if there are no kernels for this GPU (gpu::GpuRuntime::scale_refusal()); out_of_memory; backend.
std::unique_ptr<DeviceStep> make_device_replay_step(ReplayProfile profile, DataType gradient, gpu::GpuRuntime& runtime,
                                                    const ArenaAllocator& allocate, int rank = 0,
                                                    std::function<bool()> paced = {});

}  // namespace hvd::models
