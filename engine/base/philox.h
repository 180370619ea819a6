// Philox4x32-10, a counter-based random generator. The value at (seed, stream, counter) needs no state, so any rank,
// thread or device can compute any element. The same input gives the same bits on every machine.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace hvd {

class Philox {
 public:
  explicit constexpr Philox(std::uint64_t seed, std::uint64_t stream = 0) noexcept : seed_(seed), stream_(stream) {}

  /// Returns the four independent 32-bit words of `counter`.
  [[nodiscard]] constexpr std::array<std::uint32_t, 4> block(std::uint64_t counter) const noexcept {
    std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                                   static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)};
    auto k0 = static_cast<std::uint32_t>(seed_);
    auto k1 = static_cast<std::uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2];
      c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    return c;
  }

  /// Returns element `index` of the stream as a uniform number in [0, 1), with 24 random bits.
  [[nodiscard]] constexpr float uniform(std::uint64_t index) const noexcept {
    return static_cast<float>(block(index / 4)[index % 4] >> 8) * 0x1.0p-24F;
  }

  /// Returns element `index` of the stream as a standard normal number (Box-Muller).
  [[nodiscard]] float normal(std::uint64_t index) const noexcept {
    const auto words = block(index / 2);
    const auto pair = (index % 2) * 2;
    const double u = (static_cast<double>(words[pair]) + 1.0) * 0x1.0p-32;  // (0, 1]
    const double v = static_cast<double>(words[pair + 1]) * 0x1.0p-32;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace hvd
