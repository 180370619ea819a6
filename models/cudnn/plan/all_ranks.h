// What the ranks of a training step exchange while each looks for its plan.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace hvd::models {

/// Collective. Takes this rank's text and returns the texts of all ranks, by rank. If the function throws an error,
/// make_cudnn_step() throws it too.
using ExchangeTexts = std::function<std::vector<std::string>(const std::string& mine)>;

/// An error that make_cudnn_step() throws on every rank, with the same text, for example "rank 1: " and the reason why
/// rank 1 cannot go on.
class ErrorOfAllRanks : public Error {
 public:
  ErrorOfAllRanks(std::size_t rank, Errc code, const std::string& why)
      : Error(code, "rank " + std::to_string(rank) + ": " + why), rank_(rank) {}
  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }

 private:
  std::size_t rank_;
};

}  // namespace hvd::models
