#include "engine/runtime/fusion_buffer.h"

#include <algorithm>
#include <bit>

#include "engine/base/align.h"
#include "engine/base/assert.h"

namespace hvd {

std::size_t lay_out(std::span<Piece> pieces, std::size_t align_bytes) noexcept {
  const std::size_t align = std::max<std::size_t>(align_bytes, 1);
  std::size_t end = 0;
  for (Piece& piece : pieces) {
    piece.offset = align_up(end, align);
    end = piece.offset + piece.bytes;
  }
  return end;
}

bool in_place(std::span<const Piece> pieces) noexcept {
  std::size_t end = 0;
  for (const Piece& piece : pieces) {
    if (piece.offset != end || piece.data != pieces.front().data + end) return false;
    end += piece.bytes;
  }
  return true;
}

void FusionBuffer::reserve(std::size_t bytes, std::size_t limit_bytes, comm::DataPlane& data, Deadline deadline) {
  if (bytes <= capacity()) return;
  // The smallest buffer: little memory for a job with small tensors, but large enough that the buffer rarely grows.
  constexpr std::size_t kSmallest = std::size_t{1} << 20;
  if (memory_) data.complete("the last batches in the fusion buffer", deadline);
  memory_.reset();  // free the old memory before new memory is mapped: its contents are not needed any more
  const std::size_t wanted = std::min(std::max(kSmallest, std::bit_ceil(bytes)), limit_bytes);
  memory_ = data.allocate(std::max(wanted, bytes), deadline);
  HVD_ASSERT(capacity() >= bytes);
}

std::byte* FusionBuffer::pack(std::span<const Piece> pieces, comm::DataPlane& data) {
  std::byte* const base = memory_->bytes().data();
  for (const Piece& piece : pieces) {
    data.copy(base + piece.offset, piece.from == nullptr ? piece.data : piece.from, piece.bytes);
  }
  return base;
}

void FusionBuffer::unpack(std::span<const Piece> pieces, comm::DataPlane& data) const {
  const std::byte* const base = memory_->bytes().data();
  for (const Piece& piece : pieces) data.copy(piece.data, base + piece.offset, piece.bytes);
}

}  // namespace hvd
