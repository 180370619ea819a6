// The learning rate of a step. It grows with the number of ranks, as Horovod's guide says, but gradually and not
// without end, so that training stays finite at 512 ranks. The update does the same work at any rate. Pure.
#pragma once

#include <cstdint>

namespace hvd::bench {

struct RateScaling {
  /// Steps from one rank's rate to the scaled rate. Goyal et al., arXiv:1706.02677, section 2.2, take 5 epochs:
  /// 195 steps at 32,768 images a step (512 ranks of 64), of ImageNet's 1.28 million.
  std::uint64_t warm_up_steps = 200;
  /// The scaled rate is at most this, unless one rank's rate is higher already.
  double bound = 0.02;
};

/// The rate that `ranks` ranks train at after the warm-up: `one_rank` times their number, at most `scaling.bound`.
double scaled_learning_rate(double one_rank, int ranks, const RateScaling& scaling);

/// The rate of step `step` (from 0): grows linearly from `one_rank` to the scaled rate.
/// Source: gradual warm-up, arXiv:1706.02677, section 2.2.
double learning_rate_of_step(double one_rank, int ranks, std::uint64_t step, const RateScaling& scaling);

}  // namespace hvd::bench
