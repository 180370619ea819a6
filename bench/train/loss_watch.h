// Follows the loss of the phase that trains. The loss must stay finite, because times of steps that compute with NaN
// mean nothing. It should not collapse: a network that has memorised its batch computes with vanishing gradients, which
// need less power.
//
// Rank 0's thread owns a LossWatch. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/train/message.h"

namespace hvd::bench {

class LossWatch {
 public:
  /// Adds the losses of some steps: one answer per rank that trained. `first_step` is the number of the first of these
  /// steps; the count starts at 1, as in Trainer::steps_done().
  void add(const std::vector<Answer>& answers, std::uint64_t first_step);

  /// Returns true if a loss was not finite.
  [[nodiscard]] bool failed() const { return !problem_.empty(); }
  /// Names the first loss that was not finite and what to do; "" if all were finite.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// Warns if the mean loss over ranks once fell below a thousandth of the first step's loss; "" if it did not.
  [[nodiscard]] std::string caution() const;

 private:
  std::optional<double> first_;  // loss of the first step, mean over ranks
  double lowest_ = 0;            // lowest mean over ranks of any step
  std::uint64_t lowest_at_ = 0;  // number of that step, from 1
  std::string problem_;
};

}  // namespace hvd::bench
