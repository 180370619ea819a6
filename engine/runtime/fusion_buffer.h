// Copies the tensors of a batch side by side, so that one reduction reduces all of them. The layout depends only on the
// batch, and is therefore equal on all ranks. The engine's thread owns the buffer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"

namespace hvd {

/// One tensor of a batch: its address, and its place in the fusion buffer.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t offset = 0;
  const std::byte* from = nullptr;  ///< address of the operand; null: at `data`. The result always goes to `data`
};

/// Sets the offsets, each a multiple of `align_bytes` (0 and 1: no padding). Returns the bytes in use.
std::size_t lay_out(std::span<Piece> pieces, std::size_t align_bytes) noexcept;

/// Returns true if the results already lie in memory in the layout of lay_out(), without gaps. The batch is then
/// reduced in place.
bool in_place(std::span<const Piece> pieces) noexcept;

class FusionBuffer {
 public:
  /// Makes room for `bytes`. Collective, because ranks may share the memory: call it with the same `bytes` on all
  /// ranks, even on a rank that copies nothing. The buffer grows by powers of two, to at most max(bytes, limit_bytes).
  void reserve(std::size_t bytes, std::size_t limit_bytes, comm::DataPlane& data, Deadline deadline);
  /// pack() copies the pieces into the buffer, and unpack() copies the results out. Both functions use data.copy(). On
  /// a device the copies are enqueued, in order with the reductions of `data`.
  std::byte* pack(std::span<const Piece> pieces, comm::DataPlane& data);
  void unpack(std::span<const Piece> pieces, comm::DataPlane& data) const;
  [[nodiscard]] std::size_t capacity() const noexcept { return memory_ ? memory_->bytes().size() : 0; }

 private:
  std::unique_ptr<comm::RegisteredMemory> memory_;
};

}  // namespace hvd
