// A fast 64-bit checksum for gigabytes of gradients. The checksum reads eight bytes at a time in four independent
// lanes, whereas engine/base/hash.h reads byte by byte. Equal bytes give equal sums. The checksum does not resist
// adversarial input and is not stable across versions.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace hvd::bench {

class Checksum {
 public:
  Checksum& add(std::span<const std::byte> data) noexcept {
    std::size_t at = 0;
    for (; at + kStride <= data.size(); at += kStride) {
      for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        std::uint64_t word = 0;
        std::memcpy(&word, data.data() + at + 8 * lane, sizeof word);
        lanes_[lane] = mix(lanes_[lane], word);
      }
    }
    for (; at < data.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, data.data() + at, std::min<std::size_t>(8, data.size() - at));
      lanes_[0] = mix(lanes_[0], word);
    }
    length_ += data.size();
    return *this;
  }

  [[nodiscard]] std::uint64_t value() const noexcept {
    std::uint64_t all = length_;
    for (const std::uint64_t lane : lanes_) all = mix(all, lane);
    return all ^ (all >> 32);
  }

 private:
  // Rotates the state, then multiplies it by the golden ratio's odd 64-bit fraction. For a given word, mix() is a
  // bijection of the state, so changing one word of the data always changes the sum.
  static constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t word) noexcept {
    return std::rotl(state ^ word, 29) * 0x9E3779B97F4A7C15ULL;
  }
  static constexpr std::size_t kStride = 32;

  std::array<std::uint64_t, 4> lanes_{1, 2, 3, 4};
  std::uint64_t length_ = 0;
};

/// Combines the checksums of many tensors into one.
inline std::uint64_t combined(std::span<const std::uint64_t> checksums) noexcept {
  return Checksum().add(std::as_bytes(checksums)).value();
}

}  // namespace hvd::bench
