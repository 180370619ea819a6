#include "models/cudnn/run/staging.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/base/align.h"

namespace hvd::models::cudnn {
namespace {

constexpr std::size_t kSlotAlign = 256;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::chrono::seconds kPieceTimeout(60);

std::size_t slot_stride(std::size_t bytes) { return align_up(bytes, kSlotAlign); }

}  // namespace

PinnedSlots::PinnedSlots(gpu::GpuRuntime& runtime, std::size_t bytes, std::string_view what)
    : runtime_(runtime), bytes_(bytes), memory_(runtime.allocate_pinned(kSlots * slot_stride(bytes), what)) {
  for (gpu::Event& event : emptied_) event = runtime.make_event(gpu::Timing::kOff);
}

std::span<std::byte> PinnedSlots::next(Deadline deadline) {
  index_ = (index_ + 1) % kSlots;
  if (used_.at(index_)) runtime_.synchronize(emptied_.at(index_).view(), deadline, "a copy to the device");
  return memory_->bytes.subspan(index_ * slot_stride(bytes_), bytes_);
}

void PinnedSlots::emptied_on(gpu::StreamView stream) {
  runtime_.record(emptied_.at(index_), stream);
  used_.at(index_) = true;
}

StagedCopy::StagedCopy(gpu::GpuRuntime& runtime)
    : runtime_(runtime), memory_(runtime.allocate_pinned(kPieceBytes, "copies of the weights")) {}

void StagedCopy::to_host(std::span<std::byte> to, const std::byte* from, gpu::StreamView stream) {
  while (!to.empty()) {
    const std::size_t bytes = std::min(to.size(), kPieceBytes);
    runtime_.copy(memory_->bytes.data(), from, bytes, stream);
    runtime_.synchronize(stream, Deadline::after(kPieceTimeout), "a copy from the device");
    std::memcpy(to.data(), memory_->bytes.data(), bytes);
    to = to.subspan(bytes);
    from += bytes;
  }
}

void StagedCopy::to_device(std::byte* to, std::span<const std::byte> from, gpu::StreamView stream) {
  while (!from.empty()) {
    const std::size_t bytes = std::min(from.size(), kPieceBytes);
    std::memcpy(memory_->bytes.data(), from.data(), bytes);
    runtime_.copy(to, memory_->bytes.data(), bytes, stream);
    runtime_.synchronize(stream, Deadline::after(kPieceTimeout), "a copy to the device");
    from = from.subspan(bytes);
    to += bytes;
  }
}

}  // namespace hvd::models::cudnn
