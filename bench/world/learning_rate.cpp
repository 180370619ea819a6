#include "bench/world/learning_rate.h"

#include <algorithm>

namespace hvd::bench {

double scaled_learning_rate(double one_rank, int ranks, const RateScaling& scaling) {
  return std::min(one_rank * ranks, std::max(one_rank, scaling.bound));
}

double learning_rate_of_step(double one_rank, int ranks, std::uint64_t step, const RateScaling& scaling) {
  const double scaled = scaled_learning_rate(one_rank, ranks, scaling);
  if (step >= scaling.warm_up_steps) return scaled;
  const double share = static_cast<double>(step) / static_cast<double>(scaling.warm_up_steps);
  return one_rank + share * (scaled - one_rank);
}

}  // namespace hvd::bench
