#include "engine/core/gradient_runs.h"

#include <algorithm>

namespace hvd::core {

GradientRuns gradient_runs(std::vector<Tag> gradients, std::size_t bytes) {
  if (!std::is_sorted(gradients.begin(), gradients.end())) std::sort(gradients.begin(), gradients.end());
  GradientRuns out;
  for (const std::size_t gradient : gradients) {
    if (out.runs.empty() || out.runs.back().last != gradient) out.runs.push_back({gradient, gradient});
    ++out.runs.back().last;
  }
  out.packed = out.runs.size() > 1 && bytes / out.runs.size() < kWorthItsOwnReduction;
  return out;
}

}  // namespace hvd::core
