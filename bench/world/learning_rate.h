// The learning rate of a step. The rate grows with the number of ranks, as Horovod's guide says, but gradually and up
// to a bound, so that the loss stays finite at 512 ranks. The update does the same work at any rate. Pure.
#pragma once

#include <cstdint>

namespace hvd::bench {

struct RateScaling {
  /// Steps in which the rate grows from one rank's rate to the scaled rate. Goyal et al., arXiv:1706.02677, section
  /// 2.2, use 5 epochs of ImageNet's 1.28 million images: 195 steps at 32,768 images per step (512 ranks of 64).
  std::uint64_t warm_up_steps = 200;
  /// Largest scaled rate, unless one rank's rate is already higher.
  double bound = 0.02;
};

/// Returns the rate after the warm-up: `one_rank` times the number of ranks, but at most `scaling.bound`.
double scaled_learning_rate(double one_rank, int ranks, const RateScaling& scaling);

/// Returns the rate of step `step` (from 0), which grows linearly from `one_rank` to the scaled rate.
/// Source: gradual warm-up, arXiv:1706.02677, section 2.2.
double learning_rate_of_step(double one_rank, int ranks, std::uint64_t step, const RateScaling& scaling);

}  // namespace hvd::bench
