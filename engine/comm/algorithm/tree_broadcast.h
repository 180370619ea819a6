// Binomial tree from one member to all others. See docs/algorithms.md.
#pragma once

#include <cstddef>
#include <span>

#include "engine/comm/algorithm/ring.h"

namespace hvd::comm {

/// Sends `data` of the member at place `root` to all members. All members give `data` of the same size.
void tree_broadcast(Transport& transport, const Members& members, std::size_t root, std::span<std::byte> data,
                    const Wait& wait);

}  // namespace hvd::comm
