// Which messages `auto` exchanges between nodes in fewer, larger steps. The engine and the simulator ask the same
// functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

/// Steps of an all-reduce between nodes. docs/algorithms.md counts them.
enum class Exchange : std::uint8_t { kDoubling, kRabenseifner, kRing };

/// Largest whole message, in bytes, for which `auto` uses each algorithm between nodes. The thresholds must be equal on
/// all ranks. docs/algorithms.md explains the trade-off.
struct Thresholds {
  std::size_t doubling_bytes = std::size_t{32} << 10;  ///< all_reduce: recursive doubling up to this size
  std::size_t rabenseifner_bytes = 0;                  ///< all_reduce: kRabenseifner up to this size, kRing above it
  /// reduce_scatter, all_gather: a ring above this size. Up to this size: halving or doubling if the number of ranks is
  /// a power of two, direct exchange otherwise.
  std::size_t direct_bytes = std::size_t{32} << 10;
  bool operator==(const Thresholds&) const = default;

  [[nodiscard]] constexpr Exchange all_reduce(std::size_t bytes) const {
    if (bytes <= doubling_bytes) return Exchange::kDoubling;
    return bytes <= rabenseifner_bytes ? Exchange::kRabenseifner : Exchange::kRing;
  }
  /// Returns true if a reduce_scatter or an all_gather of `bytes` uses no ring.
  [[nodiscard]] constexpr bool is_direct(std::size_t bytes) const { return bytes <= direct_bytes; }
};

}  // namespace hvd
