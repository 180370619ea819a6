// The per-operation profile of the steps that are measured, and of no others: a TrainStep reports means over all its
// steps, those of the warm-up and of the checks among them. Rank 0 only.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/run_record.h"
#include "models/train_step.h"

namespace hvd::bench {

class OperationLog {
 public:
  /// Around steps that count: what `profile` says before and after them, and how many steps it is the mean of.
  /// Both calls of a pair see the same operations. Errors: HVD_ASSERT where they do not.
  void begin(std::vector<models::OperationProfile> profile, std::uint64_t steps);
  void end(const std::vector<models::OperationProfile>& profile, std::uint64_t steps);

  /// In execution order, mean seconds per step that counted; empty without such steps, or without a profile.
  [[nodiscard]] std::vector<OperationRow> rows() const;

 private:
  std::vector<models::OperationProfile> before_;
  std::uint64_t steps_before_ = 0;
  std::vector<OperationRow> sums_;  // seconds: of all steps that counted
  std::uint64_t steps_ = 0;
};

}  // namespace hvd::bench
