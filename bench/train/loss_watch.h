// Follows the loss of the phase that trains. The loss has to stay finite: times of steps that compute with NaN mean
// nothing. It should not collapse: a network that has memorised its batch computes with vanishing gradients, which cost
// a processor less power.
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
  /// Takes the losses of steps of the ranks that trained, one answer per rank. `first_step` is the number of the first
  /// of them, from 1, as Trainer::steps_done() counts.
  void add(const std::vector<Answer>& answers, std::uint64_t first_step);

  /// Whether a loss was not finite.
  [[nodiscard]] bool failed() const { return !problem_.empty(); }
  /// Names the first loss that was not finite, and what to do; empty if there was none.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// Says that the mean loss over the ranks once fell below a thousandth of the first step's; empty if it did not.
  [[nodiscard]] std::string caution() const;

 private:
  std::optional<double> first_;  // mean over the ranks
  double lowest_ = 0;            // of these means
  std::uint64_t lowest_at_ = 0;  // number of its step, from 1
  std::string problem_;
};

}  // namespace hvd::bench
