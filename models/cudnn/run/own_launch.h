// Turns groups of Provider::kOwn into calls of our kernels. Kernel and addresses are chosen once, when the step is
// built. Building a launch is pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "models/cudnn/kernels/table.h"
#include "models/cudnn/plan/memory_layout.h"

namespace hvd::models::cudnn {

/// Enqueues one group's work. Allocates nothing, waits for nothing, and does the same at every call.
using Launch = std::function<void(kernels::Stream)>;

struct OwnContext {
  const Graph& graph;
  const kernels::Table& kernels;
  std::uint64_t seed = 0;                          ///< seed of the dropout masks
  const kernels::StepScalars* scalars = nullptr;   ///< on the device
  const kernels::LossScale* loss_scale = nullptr;  ///< on the device
  double gradient_prescale = 1.0;                  ///< see StepOptions
};

/// Returns the bytes of the shared workspace that `group` needs.
std::size_t own_workspace(const Program& program, const Group& group, const kernels::Table& kernels);

/// Makes the launch of a group that own_kernel() (lowering.h) accepts. The launch refers only to device memory.
/// Errors: invalid_argument for a group that no kernel of ours runs.
Launch own_launch(const Addresses& addresses, const Group& group, const OwnContext& context);

}  // namespace hvd::models::cudnn
