// Rounding sizes up. Pure.
#pragma once

#include <cstddef>

namespace hvd {

/// The smallest multiple of `to`, which is not 0, that is at least `value`.
constexpr std::size_t align_up(std::size_t value, std::size_t to) noexcept { return (value + to - 1) / to * to; }

}  // namespace hvd
