// A bf16 copy of fp32 weights in the layout of a matrix unit: pairs of one channel axis beside each other,
// the other axis across the vector. The library's reorder does it too, but only for a whole tensor, and from
// memory; this one takes any run of the stored weights, so that the update can do it while they are in cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "models/onednn/compat.h"

namespace hvd::models::onednn {

class TiledCopy {
 public:
  static constexpr std::size_t kTile = 16;

  /// From fp32 weights laid out as `stored` {o, i} or {o, i, h, w} to bf16 as `wanted`. Empty when the two are
  /// not both made of 16 x 16 tiles (plain rows or blocks on one side, pairs on the other).
  static std::optional<TiledCopy> plan(const Md& stored, const Md& wanted);

  /// Elements of the unit of work: strip s is the stored elements [s * strip(), (s + 1) * strip()).
  [[nodiscard]] std::size_t strip() const noexcept { return strip_; }
  [[nodiscard]] std::size_t strips() const noexcept { return strips_; }
  /// Tiles of one strip.
  [[nodiscard]] std::size_t tiles() const noexcept { return strip_ / (kTile * kTile); }
  /// How a strip lies in memory: rows() rows of strip() / rows() elements. One for a blocked layout. The 16 of a tile
  /// for a plain matrix, whose tile t then is the columns [t * kTile, (t + 1) * kTile).
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  /// Writes tiles [first, last) of a strip; `stored` and `copy` are the whole tensors, `copy` aligned to 64 bytes
  /// and, before the first call, zero (padding is never written). Rounds to nearest even. Wants avx512_core_bf16,
  /// as all bf16 computation of this backend does. Tiles may be written by different threads; each must call
  /// finish() before another one reads.
  void pack(const float* stored, std::uint16_t* copy, std::size_t strip, std::size_t first, std::size_t last) const;
  /// Orders what pack() wrote past the cache before what the calling thread does next.
  static void finish() noexcept;

 private:
  /// Element offsets of tile (o, i, pixel) are the sums of the three.
  struct Offsets {
    std::vector<std::size_t> o, i, pixel;
  };
  Offsets from_, to_;
  std::size_t strip_ = 0, strips_ = 0, rows_ = 1;
  std::size_t tiles_o_ = 1, tiles_i_ = 1;  // of one strip
  std::size_t strips_i_ = 1;               // strips along i
  std::size_t row_ = 0;                    // stored elements from one row of a tile to the next
  std::size_t pair_ = 0;                   // copied elements from one row of pairs to the next
  bool pairs_across_rows_ = false;         // else the pairs are beside each other in the stored rows
};

}  // namespace hvd::models::onednn
