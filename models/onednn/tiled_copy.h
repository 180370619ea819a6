// Makes a bf16 copy of fp32 weights in the layout of a matrix unit. Two neighbours along one channel axis (o or i) form
// a pair and are adjacent in memory; a row has 16 pairs along the other channel axis. oneDNN's reorder makes the same
// copy, but only of a whole tensor that it reads from memory. TiledCopy works on any part of the stored weights, so
// that the update can make the copy while the weights are in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/vector_level.h"
#include "models/onednn/compat.h"

namespace hvd::models::onednn {

class TiledCopy {
 public:
  static constexpr std::size_t kTile = 16;

  /// Plans the copy of fp32 weights with layout `stored` {o, i} or {o, i, h, w} to bf16 with layout `wanted`. Returns
  /// nullopt if a layout does not consist of 16 x 16 tiles (plain rows or blocks in `stored`, pairs in `wanted`), or if
  /// the processor cannot pack tiles with vectors of `level` (avx512_core_bf16 can). The library's reorder makes the
  /// same copy.
  static std::optional<TiledCopy> plan(const Md& stored, const Md& wanted, VectorLevel level = vector_level());

  /// Number of elements in a strip. pack() works on one strip, and strip s has the stored elements
  /// [s * strip(), (s + 1) * strip()).
  [[nodiscard]] std::size_t strip() const noexcept { return strip_; }
  [[nodiscard]] std::size_t strips() const noexcept { return strips_; }
  [[nodiscard]] std::size_t tiles() const noexcept { return strip_ / (kTile * kTile); }
  /// A strip is stored as rows() rows of strip() / rows() elements. rows() is 1 for a blocked layout, and 16 for a
  /// plain matrix, in which tile t is the columns [t * kTile, (t + 1) * kTile).
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  /// Writes tiles [first, last) of a strip. `stored` and `copy` are the whole tensors. `copy` must be aligned to 64
  /// bytes, and must be zero before the first call, because pack() never writes padding. Rounds to nearest even.
  /// Different threads may write different tiles; each thread must call finish() before another thread reads the copy.
  void pack(const float* stored, std::uint16_t* copy, std::size_t strip, std::size_t first, std::size_t last) const;
  /// Completes the non-temporal stores of pack() before later stores of the calling thread.
  static void finish() noexcept;

 private:
  /// The element offset of tile (o, i, pixel) is o[o] + i[i] + pixel[pixel].
  struct Offsets {
    std::vector<std::size_t> o, i, pixel;
  };
  Offsets from_, to_;
  std::size_t strip_ = 0, strips_ = 0, rows_ = 1;
  std::size_t tiles_o_ = 1, tiles_i_ = 1;  // tiles of one strip along o and i
  std::size_t strips_i_ = 1;               // number of strips along i
  std::size_t row_ = 0;                    // distance of a tile's rows in the stored weights, in elements
  std::size_t pair_ = 0;                   // distance of a tile's rows of pairs in the copy, in elements
  bool pairs_across_rows_ = false;         // true: the elements of a pair are in two stored rows; false: in one row
};

}  // namespace hvd::models::onednn
