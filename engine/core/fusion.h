// Tensor fusion: which of the agreed tensors travel together. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/request.h"

namespace hvd::core {

struct FusionOptions {
  /// Horovod's default since 2020 (64 MB before). 0: no fusion.
  std::size_t threshold_bytes = std::size_t{128} << 20;
  /// Keep looking past a tensor that does not fit or match, while fused + skipped <= threshold.
  bool look_ahead = true;
  /// Each tensor's start in the fusion buffer is a multiple of this.
  std::size_t align_bytes = 64;
};

/// Batches in execution order. Order of first appearance is kept; tensors of one batch share dtype and op;
/// a tensor larger than the threshold goes alone.
/// Source: arXiv:1802.05799, Tensor Fusion; look-ahead as in horovod/common/controller.cc FuseResponses.
std::vector<Batch> fuse(const std::vector<Request>& agreed, const FusionOptions& options);

}  // namespace hvd::core
