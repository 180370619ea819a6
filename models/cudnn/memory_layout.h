// Where a Program's values lie in device memory. Pure: same program, same offsets.
//
// Arenas (docs/architecture.md): parameters, gradients and momentum each in the order in which backward makes the
// gradients, with equal slots, so that a bucket of gradients is one range and the update is one launch over all of
// them. Everything else that groups leave in memory shares one arena by liveness.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/cudnn/analyse.h"
#include "models/cudnn/program.h"
#include "models/train_step.h"

namespace hvd::models::cudnn {

inline constexpr std::size_t kNoOffset = static_cast<std::size_t>(-1);

struct MemoryLayout {
  /// By parameter. Offsets and counts in elements, both multiples of kSlotElements: a slot starts at 128 bytes at
  /// least in an arena of any type.
  std::vector<ArenaSlot> slots;
  std::size_t parameter_elements = 0;

  // Bytes of each arena.
  std::size_t weights = 0;    ///< what the operations read: in the compute type
  std::size_t master = 0;     ///< fp32; the same memory as `weights` in fp32, then 0
  std::size_t gradients = 0;  ///< in the gradient type
  std::size_t momentum = 0;   ///< fp32
  std::size_t state = 0;      ///< running statistics, fp32
  std::size_t images = 0, labels = 0;
  std::size_t image_elements = 0;  ///< of the network's images; `images` may hold more
  std::size_t padded_weights = 0;
  std::size_t scratch = 0;
  std::size_t scratch_lower_bound = 0;  ///< largest sum of values that live at the same time
  std::size_t scratch_without_reuse = 0;

  /// By value: bytes from the start of the arena that its storage names; kNoOffset for values that stay inside a group.
  std::vector<std::size_t> offsets;

  /// All arenas, less the workspace.
  [[nodiscard]] std::size_t total() const {
    return weights + master + gradients + momentum + state + images + labels + padded_weights + scratch;
  }
};

inline constexpr std::size_t kSlotElements = 64;
inline constexpr std::size_t kScratchAlignBytes = 256;

MemoryLayout lay_out(const Graph& graph, const Program& program, ComputeType compute, DataType gradient);

/// By value: the last group that reads it, or a slice of it, or what it is a slice of; -1 for values that no group
/// reads. What lies in an arena of its own is needed to the end, and is not listed (-1).
std::vector<int> last_readers(const Program& program);

}  // namespace hvd::models::cudnn
