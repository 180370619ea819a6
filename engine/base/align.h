// Rounds a size up to a multiple of an alignment. Pure.
#pragma once

#include <cstddef>

namespace hvd {

/// Returns the smallest multiple of `to` that is at least `value`. `to` must not be 0.
constexpr std::size_t align_up(std::size_t value, std::size_t to) noexcept { return (value + to - 1) / to * to; }

}  // namespace hvd
