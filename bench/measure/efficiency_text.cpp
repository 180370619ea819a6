#include "bench/measure/efficiency_text.h"

#include <fmt/format.h>

namespace hvd::bench {

bool is_resolved(const Estimate& efficiency) {
  return efficiency.has_interval() && efficiency.high - efficiency.low <= kWidestEfficiency;
}

std::string efficiency_text(const Estimate& efficiency) {
  if (!efficiency.has_interval()) return "not resolved: too few rounds for an interval";
  if (!is_resolved(efficiency)) {
    return fmt::format("not resolved: between {:.0f} and {:.0f} %", 100 * efficiency.low, 100 * efficiency.high);
  }
  return fmt::format("{:.1f} % [{:.1f}, {:.1f}]", 100 * efficiency.value, 100 * efficiency.low, 100 * efficiency.high);
}

Estimate estimate_of(const DecompositionRow& row) {
  return {row.fraction, row.low.value_or(kNoInterval), row.high.value_or(kNoInterval)};
}

}  // namespace hvd::bench
