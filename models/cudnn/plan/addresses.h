// Finds where each value of a plan lies on a device: the address of the value's arena plus the value's offset
// (memory_layout.h). No device memory is read.
#pragma once

#include <cstddef>
#include <span>

#include "models/cudnn/kernels/kernels.h"
#include "models/cudnn/lowering/program.h"
#include "models/cudnn/plan/memory_layout.h"

namespace hvd::models::cudnn {

/// Device memory of one training step, as large as MemoryLayout says. In fp32, `weights` and `master` are the same
/// memory.
struct Arenas {
  std::span<std::byte> weights, master, gradients, momentum, state, images, labels, padded_weights, scratch;
  std::span<std::byte> workspace;  ///< shared by all launches
};

/// Describes value `id` as a matrix {pixels or samples, channels} without an address. A slice has the pitch of the
/// value from which the slice is cut. A vector is a matrix of one row.
kernels::Matrix matrix_of(const Program& program, ValueId id);

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
