// Follows the loss of the phase that trains. The loss must stay finite, because times of steps that compute with NaN
// mean nothing. The loss should not collapse, because a network that has memorised its batch computes with vanishing
// gradients, which need less power than real ones.
//
// Rank 0's thread owns a LossWatch. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/session/message.h"

namespace hvd::bench {

class LossWatch {
 public:
  /// Adds the losses of some steps. `answers`: one for each rank that trained. `first_step`: number of the first of
  /// these steps, counted from 1 as in Trainer::steps_done().
  void add(const std::vector<Answer>& answers, std::uint64_t first_step);

  /// Returns true if a loss was not finite.
  [[nodiscard]] bool failed() const { return !problem_.empty(); }
  /// Returns a text that names the first loss that was not finite and what to do; "" if all losses were finite.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// Returns a warning if the mean loss over ranks once fell below a thousandth of the first step's loss, otherwise "".
  [[nodiscard]] std::string caution() const;

 private:
  std::optional<double> first_;  // loss of the first step, mean over ranks
  double lowest_ = 0;            // lowest mean over ranks of any step
  std::uint64_t lowest_at_ = 0;  // number of the step with the lowest mean, from 1
  std::string problem_;
};

}  // namespace hvd::bench
