// The way of a batch to the device. Images cross on a stream of their own, two batches in flight, while the step before
// computes; the compute stream only converts them to its type. Images that say that they will come again
// (Batch::content) stay on the device, as long as there is memory. Labels and the step's numbers change from step to
// step: the compute stream copies them from one of two pinned slots, behind the step before, which reads its own.
// One thread; the GPU must be current.
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
              const kernels::Table& kernels, gpu::GpuRuntime& runtime, gpu::StreamView compute);

  /// As DeviceStep::load().
  void load(const Batch& batch, Deadline deadline);
  [[nodiscard]] std::size_t device_bytes() const noexcept;
  /// Where copies run, for whoever has to wait for all of them.
  [[nodiscard]] gpu::StreamView copy_stream() const noexcept { return copy_; }

  static constexpr std::size_t kMostKept = 4;

 private:
  void check(const Batch& batch) const;
  /// Step, first sample and labels.
  void load_numbers(const Batch& batch, Deadline deadline);
  /// The images, from host memory.
  void cross(const Batch& batch, Deadline deadline);
  void convert(std::byte* staged);
  void keep(std::uint64_t content);

  const Graph& graph_;
  kernels::Matrix images_;
  const StepMemory& memory_;
  const kernels::Table& kernels_;
  gpu::GpuRuntime& runtime_;
  gpu::StreamView compute_;
  gpu::Stream copy_;
  std::size_t image_bytes_;  // of a batch, in fp32
  gpu::DeviceMemory staging_;
  PinnedSlots image_slots_;
  PinnedSlots step_slots_;  // the step's numbers, then its labels
  std::array<gpu::Event, PinnedSlots::kSlots> arrived_, consumed_;
  std::map<std::uint64_t, gpu::DeviceMemory> kept_;  // by content: images as operations read them
  std::uint64_t there_ = 0;                          // content of the images that operations read now
  bool full_ = false;
};

}  // namespace hvd::models::cudnn
