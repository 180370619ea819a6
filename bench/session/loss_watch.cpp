#include "bench/session/loss_watch.h"

#include <fmt/format.h>

#include <cmath>

namespace hvd::bench {
namespace {

constexpr double kCollapsed = 1e-3;  // fraction of the first step's loss

std::string loss_text(double value) {
  if (std::isnan(value)) return "nan";  // fmt::format() would also print the sign
  return fmt::format("{:.4g}", value);
}

}  // namespace

void LossWatch::add(const std::vector<Answer>& answers, std::uint64_t first_step) {
  const std::size_t steps = answers.empty() ? 0 : answers.front().samples.loss.size();
  for (std::size_t i = 0; i < steps; ++i) {
    const std::uint64_t step = first_step + i;
    double sum = 0, ranks = 0;
    for (std::size_t r = 0; r < answers.size(); ++r) {
      if (i >= answers[r].samples.loss.size()) continue;
      const double loss = answers[r].samples.loss[i];
      if (!std::isfinite(loss) && !failed()) {
        problem_ = fmt::format(
            "the loss of rank {} was {} in training step {}{}: training has diverged, so nothing more was measured; "
            "lower --learning-rate",
            r, loss_text(loss), step, first_ ? fmt::format(", and {} in the first", loss_text(*first_)) : "");
      }
      sum += loss;
      ++ranks;
    }
    const double mean = sum / ranks;
    if (!first_ || mean < lowest_) {
      lowest_ = mean;
      lowest_at_ = step;
    }
    if (!first_) first_ = mean;
  }
}

std::string LossWatch::caution() const {
  if (!first_ || !(lowest_ < kCollapsed * *first_)) return {};
  return fmt::format(
      "the loss has collapsed, from {} to {} in training step {}: the network has memorised its labels, and with "
      "vanishing gradients its steps may be faster than real ones; leave out --labels cycled, or lower --learning-rate",
      loss_text(*first_), loss_text(lowest_), lowest_at_);
}

}  // namespace hvd::bench
