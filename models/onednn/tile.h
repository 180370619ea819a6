// Writes one tile of TiledCopy (tiled_copy.h): 16 x 16 fp32 weights become 8 rows of 16 pairs in bf16. CMake chooses
// tile_avx512.cpp, or no_tile.cpp for other architectures.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/vector_level.h"

namespace hvd::models::onednn {

/// Returns false if the processor cannot make tiles with vectors of `level` or lower. Then no other function of this
/// file may be called.
bool tiles_available(VectorLevel level) noexcept;

/// Writes a tile in which a pair has elements of two stored rows: row p of the copy has the pairs of stored rows 2p and
/// 2p + 1. `row` and `pair` are the distances, in elements, of the rows in `from` and in `to`. `to` must be aligned to
/// 64 bytes.
void interleave_rows(const float* from, std::size_t row, std::uint16_t* to, std::size_t pair);

/// Writes a tile in which a pair has two elements of one stored row: row p of the copy has elements 2p and 2p + 1 of
/// each of the 16 stored rows. The arguments are those of interleave_rows().
void transpose_pairs(const float* from, std::size_t row, std::uint16_t* to, std::size_t pair);

/// Completes the non-temporal stores of the functions above before later stores of the calling thread.
void finish_tiles() noexcept;

}  // namespace hvd::models::onednn
