// Plain or registered memory for a check of a collective, with guard bytes behind it. Each rank owns its buffers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"

namespace hvd::test {

enum class Memory : std::uint8_t { kPlain, kRegistered };

/// The deadline of a check. The deadline is long because a test machine may be busy.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

class GuardedBuffer {
 public:
  static constexpr std::byte kGuard{0xa5};
  static constexpr std::size_t kGuardBytes = 64;

  /// With registered memory the constructor is collective, and every rank must give the same `capacity`: the largest
  /// `bytes` of any rank.
  GuardedBuffer(comm::Communicator& communicator, Memory memory, std::size_t bytes, std::size_t capacity)
      : bytes_(bytes) {
    if (memory == Memory::kRegistered) {
      registered_ = communicator.data().allocate(capacity + kGuardBytes, soon());
      data_ = registered_->bytes().data();
    } else {
      plain_.resize(bytes + kGuardBytes);
      data_ = plain_.data();
    }
    std::fill_n(data_ + bytes_, kGuardBytes, kGuard);
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }
  [[nodiscard]] bool intact() const {
    return std::all_of(data_ + bytes_, data_ + bytes_ + kGuardBytes, [](std::byte b) { return b == kGuard; });
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<comm::RegisteredMemory> registered_;
  std::vector<std::byte> plain_;
  std::byte* data_ = nullptr;
};

}  // namespace hvd::test
