// Lets threads sleep on a 32-bit word that may be in memory shared between processes. Source: futex(2).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace hvd::comm {

/// Sleeps while `word` is `expected`, for at most `timeout`. It may return early, so call it in a loop.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout) noexcept;
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace hvd::comm
