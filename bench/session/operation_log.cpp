#include "bench/session/operation_log.h"

#include <utility>

#include "engine/base/assert.h"

namespace hvd::bench {

void OperationLog::begin(std::vector<models::OperationProfile> profile, std::uint64_t steps) {
  before_ = std::move(profile);
  steps_before_ = steps;
}

void OperationLog::end(const std::vector<models::OperationProfile>& profile, std::uint64_t steps) {
  // A backend may have no profile before its first step.
  HVD_ASSERT(profile.size() == before_.size() || steps_before_ == 0);
  HVD_ASSERT(steps >= steps_before_);
  if (sums_.empty()) {
    for (const models::OperationProfile& operation : profile) {
      sums_.push_back({operation.node, operation.kind, operation.implementation, operation.library, 0, operation.flops,
                       operation.bytes});
    }
  }
  for (std::size_t i = 0; i < profile.size(); ++i) {
    const double before = before_.empty() ? 0 : before_[i].seconds * static_cast<double>(steps_before_);
    sums_[i].seconds += profile[i].seconds * static_cast<double>(steps) - before;
  }
  steps_ += steps - steps_before_;
}

std::vector<OperationRow> OperationLog::rows() const {
  if (steps_ == 0) return {};
  std::vector<OperationRow> rows = sums_;
  for (OperationRow& row : rows) row.seconds /= static_cast<double>(steps_);
  return rows;
}

}  // namespace hvd::bench
