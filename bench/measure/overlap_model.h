// Predicts the cost of overlapping communication with backward. The model is a queue of buckets: backward decides when
// each bucket is ready, and each reduction takes as long as it takes while nothing else runs. The prediction is printed
// beside the measured exposed communication. Pure.
#pragma once

#include <span>
#include <vector>

#include "engine/core/bucket_plan.h"

namespace hvd::bench {

struct BucketTiming {
  double ready_seconds = 0;   ///< from the start of the step until the last gradient of the bucket is ready
  double reduce_seconds = 0;  ///< time to reduce this bucket while nothing else runs
};

struct OverlapModel {
  double exposed_seconds = 0;     ///< from the end of backward to the end of the last bucket; never negative
  double overlapped_seconds = 0;  ///< time of reductions that run beside the compute
};

/// Applies the model: buckets are reduced in order and one at a time; a reduction starts when its bucket is ready.
OverlapModel expected_overlap(std::span<const BucketTiming> buckets, double backward_end_seconds);

/// Computes when each bucket of `plan` is ready from the times at which its gradients are ready.
std::vector<double> bucket_ready_seconds(const core::BucketPlan& plan, std::span<const double> gradient_ready_seconds);

/// Returns the expected step time: `none_step_seconds`, the step without communication, plus model.exposed_seconds. If
/// the engine has no core of its own (`spare_core` is false), also adds model.overlapped_seconds, because the reduction
/// then delays the compute.
double expected_step_seconds(double none_step_seconds, const OverlapModel& model, bool spare_core);

}  // namespace hvd::bench
