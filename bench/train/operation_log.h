// The per-operation profile of the measured steps only. A TrainStep reports means over all its steps, including those
// of the warm-up and of the checks; this class subtracts them. Rank 0 only.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/store/run_record.h"
#include "models/train_step.h"

namespace hvd::bench {

class OperationLog {
 public:
  /// Call these around the steps that count. `profile` is the mean over all `steps` so far. Both calls of a pair must
  /// have the same operations. Errors: HVD_ASSERT if they differ.
  void begin(std::vector<models::OperationProfile> profile, std::uint64_t steps);
  void end(const std::vector<models::OperationProfile>& profile, std::uint64_t steps);

  /// Rows in execution order, with mean seconds per step that counted. Empty if no step counted or there is no profile.
  [[nodiscard]] std::vector<OperationRow> rows() const;

 private:
  std::vector<models::OperationProfile> before_;
  std::uint64_t steps_before_ = 0;
  std::vector<OperationRow> sums_;  // seconds summed over all steps that counted
  std::uint64_t steps_ = 0;
};

}  // namespace hvd::bench
