// Copies of host data to the device. The host fills a pinned slot, and copies on a stream empty it. There are two
// slots, so that the host never waits for the copy that it has just enqueued. Only one thread may use an object of
// these classes.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "engine/base/deadline.h"
#include "engine/gpu/runtime.h"

namespace hvd::models::cudnn {

class PinnedSlots {
 public:
  PinnedSlots(gpu::GpuRuntime& runtime, std::size_t bytes, std::string_view what);

  /// Waits until the copies out of the next slot have ended, and returns that slot to be filled. Errors: timeout.
  [[nodiscard]] std::span<std::byte> next(Deadline deadline);
  /// Call this function when all copies out of the slot from next() have been enqueued on `stream`.
  void emptied_on(gpu::StreamView stream);
  /// Number of the slot that next() returned last.
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  static constexpr std::size_t kSlots = 2;

 private:
  gpu::GpuRuntime& runtime_;
  std::size_t bytes_;
  gpu::PinnedMemory memory_;
  std::array<gpu::Event, kSlots> emptied_;
  std::array<bool, kSlots> used_{};
  std::size_t index_ = kSlots - 1;
};

/// Copies data of any length between pageable host memory and the device, piece by piece, and waits for each piece.
/// Weights are read and written through this class, outside timed steps.
class StagedCopy {
 public:
  explicit StagedCopy(gpu::GpuRuntime& runtime);
  /// Both functions copy after all earlier work on `stream` and return when the copy has ended. Errors: timeout.
  void to_host(std::span<std::byte> to, const std::byte* from, gpu::StreamView stream);
  void to_device(std::byte* to, std::span<const std::byte> from, gpu::StreamView stream);

 private:
  gpu::GpuRuntime& runtime_;
  gpu::PinnedMemory memory_;
};

}  // namespace hvd::models::cudnn
