// A short text that one rank writes and other ranks read at any time. A sequence lock excludes torn reads. The words
// are atomic, so that ThreadSanitizer accepts the lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace hvd::comm {

class SharedText {
 public:
  static constexpr std::size_t kCapacity = 1024;

  /// Cuts the text off at kCapacity bytes. Only one rank may call write().
  void write(std::string_view text) noexcept {
    const std::uint32_t before = version_.load(std::memory_order_relaxed);
    version_.store(before + 1, std::memory_order_relaxed);
    const std::size_t length = std::min(text.size(), kCapacity);
    length_.store(static_cast<std::uint32_t>(length), std::memory_order_release);
    for (std::size_t i = 0; i * 8 < length; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + i * 8, std::min<std::size_t>(8, length - i * 8));
      words_[i].store(word, std::memory_order_release);
    }
    version_.store(before + 2, std::memory_order_release);
  }
  /// Returns "(unreadable)" after 10000 attempts, for example if the writer died during write().
  [[nodiscard]] std::string read() const {
    for (int attempt = 0; attempt < 10000; ++attempt) {
      const std::uint32_t before = version_.load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      const std::size_t length = std::min<std::size_t>(length_.load(std::memory_order_acquire), kCapacity);
      std::string text(length, '\0');
      for (std::size_t i = 0; i * 8 < length; ++i) {
        const std::uint64_t word = words_[i].load(std::memory_order_acquire);
        std::memcpy(text.data() + i * 8, &word, std::min<std::size_t>(8, length - i * 8));
      }
      if (version_.load(std::memory_order_relaxed) == before) return text;
    }
    return "(unreadable)";
  }

 private:
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint32_t> length_{0};
  std::array<std::atomic<std::uint64_t>, kCapacity / 8> words_{};
};

}  // namespace hvd::comm
