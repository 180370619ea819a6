// The per-operation profile of the measured steps only. A TrainStep reports means over all its steps, including the
// steps of the warm-up and of the checks. OperationLog subtracts these steps. Rank 0 only.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/store/run_record.h"
#include "models/train_step.h"

namespace hvd::bench {

class OperationLog {
 public:
  /// Call begin() before the measured steps and end() after them. `profile` is the TrainStep's mean over all its steps
  /// so far, `steps` their number. Errors: HVD_ASSERT if the two profiles have different operations.
  void begin(std::vector<models::OperationProfile> profile, std::uint64_t steps);
  void end(const std::vector<models::OperationProfile>& profile, std::uint64_t steps);

  /// Returns rows in execution order, with mean seconds per measured step. Returns no rows if no steps were measured or
  /// there was no profile.
  [[nodiscard]] std::vector<OperationRow> rows() const;

 private:
  std::vector<models::OperationProfile> before_;
  std::uint64_t steps_before_ = 0;
  std::vector<OperationRow> sums_;  // seconds summed over all steps that counted
  std::uint64_t steps_ = 0;
};

}  // namespace hvd::bench
