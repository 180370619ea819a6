// Copies the tensors of a batch side by side, so that they travel in one reduction. The layout depends on
// the batch alone and is therefore equal on all ranks. The engine's thread owns it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"

namespace hvd {

/// One tensor of a batch: where it lies, and where it lies in the fusion buffer.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t offset = 0;
  const std::byte* from = nullptr;  ///< null: the operand is `data`; else the operand is here and the result goes there
};

/// Fills in the offsets, each a multiple of `align_bytes` (0 and 1: packed). Returns the bytes in use.
std::size_t lay_out(std::span<Piece> pieces, std::size_t align_bytes) noexcept;

/// Returns true if the results lie as lay_out() wants them, with nothing between them: then the batch is
/// reduced where it is.
bool in_place(std::span<const Piece> pieces) noexcept;

class FusionBuffer {
 public:
  /// Collective, for the memory may be shared between ranks: call it with the same `bytes` on all of them,
  /// whether or not this rank is going to copy. Grows by powers of two, to at most max(bytes, limit_bytes).
  void reserve(std::size_t bytes, std::size_t limit_bytes, comm::DataPlane& data, Deadline deadline);
  /// By copies of `data`: on a device they are enqueued, in the order of its reductions.
  std::byte* pack(std::span<const Piece> pieces, comm::DataPlane& data);
  void unpack(std::span<const Piece> pieces, comm::DataPlane& data) const;
  [[nodiscard]] std::size_t capacity() const noexcept { return memory_ ? memory_->bytes().size() : 0; }

 private:
  std::unique_ptr<comm::RegisteredMemory> memory_;
};

}  // namespace hvd
