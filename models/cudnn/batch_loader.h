// The way of a batch to the device. It crosses on a stream of its own, two in flight, while the step before computes;
// the compute stream only converts it to its type. Batches that say that they will come again (Batch::content) stay on
// the device, as long as there is memory. One thread; the GPU must be current.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "models/cudnn/kernels/table.h"
#include "models/cudnn/staging.h"
#include "models/cudnn/step_memory.h"
#include "models/train_step.h"

namespace hvd::models::cudnn {

class BatchLoader {
 public:
  /// Everything given must outlive it. `images`: where they are written for the operations, in their type.
  BatchLoader(const Graph& graph, const kernels::Matrix& images, const StepMemory& memory,
              const kernels::Table& kernels, gpu::Runtime& runtime, gpu::StreamView compute);

  /// As DeviceStep::load().
  void load(const Batch& batch, Deadline deadline);
  [[nodiscard]] std::size_t device_bytes() const noexcept;
  /// Where copies run, for whoever has to wait for all of them.
  [[nodiscard]] gpu::StreamView copy_stream() const noexcept { return copy_; }

  static constexpr std::size_t kMostKept = 4;

 private:
  void check(const Batch& batch) const;
  void cross(const Batch& batch, Deadline deadline);
  void convert(std::byte* staged);
  void keep(std::uint64_t content);

  const Graph& graph_;
  kernels::Matrix images_;
  const StepMemory& memory_;
  const kernels::Table& kernels_;
  gpu::Runtime& runtime_;
  gpu::StreamView compute_;
  gpu::Stream copy_;
  std::size_t labels_at_;  // bytes from the start of a staged batch: images in fp32, then labels
  std::size_t slot_bytes_;
  gpu::DeviceMemory staging_;
  PinnedSlots slots_, number_slots_;
  std::array<gpu::Event, PinnedSlots::kSlots> arrived_, consumed_;
  std::map<std::uint64_t, gpu::DeviceMemory> kept_;  // by content: images as operations read them, then labels
  bool full_ = false;
};

}  // namespace hvd::models::cudnn
