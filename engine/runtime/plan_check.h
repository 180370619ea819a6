// Checks that all ranks planned the same buckets. Called by the engine's thread.
#pragma once

#include <vector>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/core/bucket_plan.h"

namespace hvd {

/// Collective. Errors: mismatch if the plans differ, with the same text on every rank. The text names the first rank
/// that differs from rank 0, its host, and the first tensor or property that differs, with both values.
void compare_plans(comm::Communicator& communicator, const core::BucketPlan& plan,
                   const std::vector<core::GradientInfo>& gradients, Deadline deadline);

}  // namespace hvd
