// FNV-1a, 64 bits: stable across machines and compilers, for plan hashes, fingerprints and checksums.
// Not for adversarial input. Source: http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hvd {

class Hasher {
 public:
  Hasher& bytes(std::span<const std::byte> data) noexcept {
    for (const std::byte b : data) state_ = (state_ ^ static_cast<std::uint64_t>(b)) * kPrime;
    return *this;
  }
  /// Hashes the length first, so that ("ab", "c") and ("a", "bc") differ.
  Hasher& text(std::string_view value) noexcept {
    number(value.size());
    return bytes(std::as_bytes(std::span(value.data(), value.size())));
  }
  /// Hashes the little-endian bytes of `value`, so that the hash is equal on every machine.
  Hasher& number(std::uint64_t value) noexcept {
    for (int i = 0; i < 8; ++i) state_ = (state_ ^ ((value >> (8 * i)) & 0xff)) * kPrime;
    return *this;
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return state_; }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001b3ULL;
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// Returns `value` as 16 lower-case hexadecimal digits.
inline std::string hex64(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = kDigits[value & 0xf];
  return text;
}

}  // namespace hvd
