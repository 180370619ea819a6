#include "models/onednn/tiled_copy.h"

#include <algorithm>
#include <utility>

#include "models/onednn/tile.h"

namespace hvd::models::onednn {
namespace {

constexpr std::size_t kTile = TiledCopy::kTile;

/// The element offsets of a blocked layout. The offset of element (o, i, pixel) is o[o] + i[i] + pixel[pixel].
struct Axes {
  std::vector<std::size_t> o, i, pixel;
  std::size_t block_o = 1, block_i = 1;  // elements of a block along o and along i
  std::size_t total = 0;
};

std::vector<std::size_t> axis_offsets(const Blocking& blocking, std::size_t axis) {
  std::vector<std::size_t> offsets(static_cast<std::size_t>(blocking.padded[axis]));
  for (std::size_t position = 0; position < offsets.size(); ++position) {
    std::size_t rest = position, inner = 1;
    for (std::size_t k = blocking.inner_blocks.size(); k-- > 0;) {
      const auto block = static_cast<std::size_t>(blocking.inner_blocks[k]);
      if (static_cast<std::size_t>(blocking.inner_axes[k]) == axis) {
        offsets[position] += rest % block * inner;
        rest /= block;
      }
      inner *= block;
    }
    offsets[position] += rest * static_cast<std::size_t>(blocking.strides[axis]);
  }
  return offsets;
}

std::optional<Axes> axes_of(const Md& desc, Type type) {
  const std::optional<Blocking> blocking = blocking_of(desc);
  if (!blocking || blocking->type != type) return std::nullopt;
  if (blocking->padded.size() != 2 && blocking->padded.size() != 4) return std::nullopt;
  Axes axes{.o = axis_offsets(*blocking, 0), .i = axis_offsets(*blocking, 1), .pixel = {0}};
  if (blocking->padded.size() == 4) {
    axes.pixel.clear();
    for (const std::size_t h : axis_offsets(*blocking, 2)) {
      for (const std::size_t w : axis_offsets(*blocking, 3)) axes.pixel.push_back(h + w);
    }
  }
  for (std::size_t k = 0; k < blocking->inner_blocks.size(); ++k) {
    const auto block = static_cast<std::size_t>(blocking->inner_blocks[k]);
    if (blocking->inner_axes[k] == 0) axes.block_o *= block;
    if (blocking->inner_axes[k] == 1) axes.block_i *= block;
  }
  axes.total = axes.o.size() * axes.i.size() * axes.pixel.size();
  return axes;
}

/// Splits every tile of an axis into groups of `group` adjacent elements. Returns the step from one group to the next
/// if all steps are equal and the elements of each group are adjacent in memory; else 0.
std::size_t step_of(const std::vector<std::size_t>& offsets, std::size_t group) {
  const std::size_t step = offsets[group] - offsets[0];
  for (std::size_t at = 0; at < offsets.size(); ++at) {
    const std::size_t in_tile = at % kTile;
    if (offsets[at] != offsets[at - in_tile] + in_tile / group * step + in_tile % group) return 0;
  }
  return step;
}

/// Returns the offset of every tile's first element.
std::vector<std::size_t> tile_starts(const std::vector<std::size_t>& offsets) {
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < offsets.size(); at += kTile) starts.push_back(offsets[at]);
  return starts;
}

bool multiples_of(const std::vector<std::size_t>& values, std::size_t unit) {
  return std::all_of(values.begin(), values.end(), [unit](std::size_t value) { return value % unit == 0; });
}

}  // namespace

std::optional<TiledCopy> TiledCopy::plan(const Md& stored, const Md& wanted, VectorLevel level) {
  if (!tiles_available(level)) return std::nullopt;
  const std::optional<Axes> from = axes_of(stored, Type::f32), to = axes_of(wanted, Type::bf16);
  if (!from || !to || from->pixel.size() != to->pixel.size()) return std::nullopt;
  if (from->o.size() % kTile != 0 || from->i.size() % kTile != 0) return std::nullopt;
  // The copy may have more padding than the stored weights. Padding is never written.
  if (to->o.size() < from->o.size() || to->i.size() < from->i.size()) return std::nullopt;
  if (to->o.size() % kTile != 0 || to->i.size() % kTile != 0) return std::nullopt;

  TiledCopy copy;
  const bool o_beside = step_of(from->o, 1) == 1;
  copy.row_ = step_of(o_beside ? from->i : from->o, 1);
  if (!o_beside && step_of(from->i, 1) != 1) return std::nullopt;
  const bool o_in_pairs = step_of(to->i, 1) == 2;
  copy.pair_ = step_of(o_in_pairs ? to->o : to->i, 2);
  if (!o_in_pairs && step_of(to->o, 1) != 2) return std::nullopt;
  if (copy.row_ == 0 || copy.pair_ == 0 || copy.pair_ % (2 * kTile) != 0) return std::nullopt;
  copy.pairs_across_rows_ = o_beside != o_in_pairs;

  copy.from_ = {tile_starts(from->o), tile_starts(from->i), from->pixel};
  copy.to_ = {tile_starts(to->o), tile_starts(to->i), to->pixel};
  // pack() stores whole cache lines, so all offsets in the copy must be multiples of a cache line.
  if (!multiples_of(copy.to_.o, 2 * kTile) || !multiples_of(copy.to_.i, 2 * kTile) ||
      !multiples_of(copy.to_.pixel, 2 * kTile)) {
    return std::nullopt;
  }

  // A strip of a blocked layout is one block along o and i, with all pixels. A strip of a plain matrix is whole rows.
  const std::size_t strip_o = std::max(from->block_o, kTile);
  const std::size_t strip_i = from->block_i == 1 ? from->i.size() : from->block_i;
  if (strip_o % kTile != 0 || strip_i % kTile != 0) return std::nullopt;
  if (from->o.size() % strip_o != 0 || from->i.size() % strip_i != 0) return std::nullopt;
  copy.tiles_o_ = strip_o / kTile;
  copy.tiles_i_ = strip_i / kTile;
  copy.strips_i_ = from->i.size() / strip_i;
  copy.strip_ = strip_o * strip_i * from->pixel.size();
  if (from->block_i == 1 && !o_beside && from->pixel.size() == 1) copy.rows_ = strip_o;
  copy.strips_ = from->total / copy.strip_;
  const std::size_t reach =
      from->o[strip_o - 1] + from->i[strip_i - 1] + *std::max_element(from->pixel.begin(), from->pixel.end());
  if (reach != copy.strip_ - 1) return std::nullopt;
  for (std::size_t s = 0; s < copy.strips_; ++s) {
    const std::size_t start = from->o[s / copy.strips_i_ * strip_o] + from->i[s % copy.strips_i_ * strip_i];
    if (start != s * copy.strip_) return std::nullopt;
  }
  return copy;
}

void TiledCopy::pack(const float* stored, std::uint16_t* copy, std::size_t strip, std::size_t first,
                     std::size_t last) const {
  // The tiles of a strip are numbered in the order {pixel, o, i}.
  const std::size_t o0 = strip / strips_i_ * tiles_o_, i0 = strip % strips_i_ * tiles_i_;
  std::size_t i = first % tiles_i_, o = first / tiles_i_ % tiles_o_, pixel = first / tiles_i_ / tiles_o_;
  for (std::size_t tile = first; tile < last; ++tile) {
    const float* from = stored + from_.o[o0 + o] + from_.i[i0 + i] + from_.pixel[pixel];
    std::uint16_t* to = copy + to_.o[o0 + o] + to_.i[i0 + i] + to_.pixel[pixel];
    if (pairs_across_rows_) {
      interleave_rows(from, row_, to, pair_);
    } else {
      transpose_pairs(from, row_, to, pair_);
    }
    if (++i < tiles_i_) continue;
    i = 0;
    if (++o < tiles_o_) continue;
    o = 0;
    ++pixel;
  }
}

void TiledCopy::finish() noexcept { finish_tiles(); }

}  // namespace hvd::models::onednn
