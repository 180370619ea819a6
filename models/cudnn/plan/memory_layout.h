// Where a Program's values lie in device memory: offsets (MemoryLayout), and the addresses that follow from them once
// the memory is allocated (Addresses). Pure: same program, same offsets. No device memory is read.
//
// Arenas (docs/architecture.md): parameters, gradients and momentum have one arena each, with the same slots, in the
// order in which backward makes the gradients. A bucket of gradients is therefore one range, and the update is one
// launch over all slots. All other values that groups leave in memory share one arena, in which values that are never
// alive together may share bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "models/cudnn/kernels/kernels.h"
#include "models/cudnn/lowering/lowering.h"
#include "models/cudnn/lowering/program.h"
#include "models/train_step.h"

namespace hvd::models::cudnn {

inline constexpr std::size_t kNoOffset = static_cast<std::size_t>(-1);

struct MemoryLayout {
  /// One slot per parameter. Offsets and counts are numbers of elements, and multiples of kSlotElements. Every slot is
  /// therefore aligned to at least 128 bytes, whatever the arena's element type.
  std::vector<ArenaSlot> slots;
  std::size_t parameter_elements = 0;

  // Bytes of each arena.
  std::size_t weights = 0;    ///< the weights that operations read, in the compute type
  std::size_t master = 0;     ///< fp32 weights; 0 if `weights` is fp32 and serves as both
  std::size_t gradients = 0;  ///< in the gradient type
  std::size_t momentum = 0;   ///< fp32
  std::size_t state = 0;      ///< running statistics, fp32
  std::size_t images = 0, labels = 0;
  std::size_t image_elements = 0;  ///< number of elements of the images, without padding
  std::size_t padded_weights = 0;
  std::size_t scratch = 0;
  std::size_t scratch_lower_bound = 0;  ///< largest sum of the sizes of values that are alive together
  std::size_t scratch_without_reuse = 0;

  /// One offset per value: bytes from the start of the value's arena, or kNoOffset for values that stay inside a group.
  std::vector<std::size_t> offsets;

  /// Bytes of all arenas, without the workspace.
  [[nodiscard]] std::size_t total() const {
    return weights + master + gradients + momentum + state + images + labels + padded_weights + scratch;
  }
};

inline constexpr std::size_t kSlotElements = 64;
inline constexpr std::size_t kScratchAlignBytes = 256;

MemoryLayout lay_out(const Graph& graph, const Program& program, ComputeType compute, DataType gradient);

/// Returns, by value, the number of the last group that touches the value's root or a slice of the root (Placement).
/// The number is -1 for values outside scratch, which are needed to the end, and for values that no group touches.
/// The tests' interpreter erases values by these lifetimes, which lay_out() also uses, and so proves them.
std::vector<int> last_readers(const Program& program);

/// Device memory of one training step, as large as MemoryLayout says. In fp32, `weights` and `master` are the same
/// memory.
struct Arenas {
  std::span<std::byte> weights, master, gradients, momentum, state, images, labels, padded_weights, scratch;
  std::span<std::byte> workspace;  ///< shared by all launches
};

/// Describes value `id` as a matrix {pixels or samples, channels} without an address. A slice has the pitch of the
/// value from which the slice is cut. A vector is a matrix of one row.
kernels::Matrix matrix_of(const Program& program, ValueId id);

/// Finds where each value of a plan lies on a device: the address of the value's arena plus the value's offset.
class Addresses {
 public:
  /// `program` and `layout` must outlive this object. `storage`: the type of the weights that operations read.
  Addresses(const Program& program, const MemoryLayout& layout, DataType storage, const Arenas& arenas)
      : program_(program), layout_(layout), storage_(storage), arenas_(arenas) {}

  /// Returns the address of the first element of value `id`. The value must be in memory.
  [[nodiscard]] std::byte* at(ValueId id) const;
  /// Returns matrix_of() with the address filled in.
  [[nodiscard]] kernels::Matrix matrix(ValueId id) const;
  /// Returns matrix() with the size of the images. `id` must be a value of rank 4.
  [[nodiscard]] kernels::Image image(ValueId id) const;
  [[nodiscard]] const Arenas& arenas() const noexcept { return arenas_; }
  [[nodiscard]] const Program& program() const noexcept { return program_; }

 private:
  [[nodiscard]] std::span<std::byte> arena(const Value& value) const;

  const Program& program_;
  const MemoryLayout& layout_;
  DataType storage_;
  Arenas arenas_;
};

}  // namespace hvd::models::cudnn
