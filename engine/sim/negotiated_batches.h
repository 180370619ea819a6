// The batches of a negotiated step. All ranks submit their gradients in one order, so what all of them have submitted
// is the list of the rank that has submitted least. One core::Negotiator, a world of its own, that is given this list
// makes the batches that N negotiators agree on (tests/sim/one_negotiator_test.cpp compares it with 2 to 512 of them).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/core/negotiator.h"
#include "engine/sim/world.h"

namespace hvd::sim {

/// One fused batch, as the engine's negotiated schedule executes it.
struct Batch {
  std::vector<core::Tag> gradients;
  std::size_t last = 0;                 ///< the gradient that is ready last
  std::size_t bytes = 0;                ///< of the gradients, without gaps
  bool packed = false;                  ///< copied into the fusion buffer and out again
  std::vector<std::size_t> reductions;  ///< bytes of each all-reduce, gaps included
};

class NegotiatedBatches {
 public:
  /// Runs one cycle with all gradients, after which every cycle is fast.
  /// Errors: invalid_argument if the cache has fewer places than there are gradients, or if gradients overlap.
  NegotiatedBatches(const StepProfile& profile, const core::NegotiatorOptions& options);
  /// Returns the batches of a cycle to which all ranks come with gradients [first, last). Valid until the next call.
  std::span<const Batch> agree(std::size_t first, std::size_t last);

 private:
  [[nodiscard]] std::vector<core::Batch> cycle();
  [[nodiscard]] Batch planned(core::Batch batch) const;

  std::vector<Gradient> gradients_;
  DataType dtype_;
  std::size_t align_bytes_;
  core::Negotiator negotiator_;
  std::vector<core::Request> requests_;
  std::vector<core::CachedAt> cached_;
  std::vector<Batch> batches_;
};

}  // namespace hvd::sim
