#include "bench/measure/overlap_model.h"

#include <algorithm>

#include "engine/base/assert.h"

namespace hvd::bench {

OverlapModel expected_overlap(std::span<const BucketTiming> buckets, double backward_end_seconds) {
  OverlapModel model;
  double free_at = 0;
  for (const BucketTiming& bucket : buckets) {
    const double start = std::max(free_at, bucket.ready_seconds);
    free_at = start + bucket.reduce_seconds;
    model.overlapped_seconds += std::max(0.0, std::min(free_at, backward_end_seconds) - start);
  }
  model.exposed_seconds = std::max(0.0, free_at - backward_end_seconds);
  return model;
}

std::vector<double> bucket_ready_seconds(const core::BucketPlan& plan, std::span<const double> gradient_ready_seconds) {
  std::vector<double> ready;
  for (const core::Bucket& bucket : plan.buckets) {
    HVD_ASSERT(bucket.first < bucket.last && bucket.last <= gradient_ready_seconds.size());
    const auto members = gradient_ready_seconds.subspan(bucket.first, bucket.last - bucket.first);
    ready.push_back(*std::max_element(members.begin(), members.end()));
  }
  return ready;
}

double expected_step_seconds(double none_step_seconds, const OverlapModel& model, bool spare_core) {
  return none_step_seconds + model.exposed_seconds + (spare_core ? 0 : model.overlapped_seconds);
}

}  // namespace hvd::bench
