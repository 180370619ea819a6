// What overlap should cost: a queue of buckets, each ready at a time that backward decides and reduced for as
// long as it takes alone. The bound that measured exposed communication is printed beside. Pure.
#pragma once

#include <span>
#include <vector>

#include "engine/core/bucket_plan.h"

namespace hvd::bench {

struct BucketTiming {
  double ready_seconds = 0;   ///< from the start of the step: its last gradient is ready
  double reduce_seconds = 0;  ///< of this bucket alone, nothing else going on
};

struct OverlapModel {
  double exposed_seconds = 0;     ///< from the end of backward to the end of the last bucket; never negative
  double overlapped_seconds = 0;  ///< reduction that runs beside the compute
};

/// Buckets are reduced in order, one at a time, none before it is ready.
OverlapModel expected_overlap(std::span<const BucketTiming> buckets, double backward_end_seconds);

/// When each bucket of `plan` is ready, from when each gradient is.
std::vector<double> bucket_ready_seconds(const core::BucketPlan& plan, std::span<const double> gradient_ready_seconds);

/// Expected step: the step without communication, plus what is exposed; where no core is left over for the
/// engine (`spare_core` false), also the overlapped reduction, which then takes its time from the compute.
double expected_step_seconds(double none_step_seconds, const OverlapModel& model, bool spare_core);

}  // namespace hvd::bench
