// There are no tiles on this architecture: TiledCopy::plan() leaves all copies to the library.
#include "engine/base/assert.h"
#include "models/onednn/tile.h"

namespace hvd::models::onednn {

bool tiles_available(VectorLevel) noexcept { return false; }

void interleave_rows(const float*, std::size_t, std::uint16_t*, std::size_t) { HVD_ASSERT(!"tiles are not available"); }

void transpose_pairs(const float*, std::size_t, std::uint16_t*, std::size_t) { HVD_ASSERT(!"tiles are not available"); }

void finish_tiles() noexcept {}

}  // namespace hvd::models::onednn
