// Bulk standard normal values from Philox, for initial weights and synthetic images. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "engine/base/philox.h"

namespace hvd::models {

/// out[i] = standard normal element `first_index + i` of the generator's stream: any split of a range into
/// pieces gives the same values. Four elements cost one Philox block and two Box-Muller pairs in single
/// precision, because VGG-16 has 138 million weights to draw.
void fill_normal(const Philox& generator, std::uint64_t first_index, std::span<float> out);

}  // namespace hvd::models
