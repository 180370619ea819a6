// Brings a batch to the device. A separate stream copies images while the previous step computes; two batches may be in
// flight. The compute stream only converts the images to the type that operations read. Images that will be used again
// (Batch::content) stay on the device while memory suffices. Labels and the step's numbers change in every step. The
// compute stream copies labels and numbers after the previous step, from one of two pinned slots. One thread uses a
// loader; the GPU must be current on this thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "models/cudnn/kernels/table.h"
#include "models/cudnn/run/staging.h"
#include "models/cudnn/run/step_memory.h"
#include "models/train_step.h"

namespace hvd::models::cudnn {

class BatchLoader {
 public:
  /// All arguments must outlive this object. `images`: the memory and the type in which operations read the images.
  BatchLoader(const Graph& graph, const kernels::Matrix& images, const StepMemory& memory,
              const kernels::Table& kernels, gpu::GpuRuntime& runtime, gpu::StreamView compute);

  /// Implements DeviceStep::load().
  void load(const Batch& batch, Deadline deadline);
  [[nodiscard]] std::size_t device_bytes() const noexcept;
  /// The stream that copies images, for callers that wait for all copies.
  [[nodiscard]] gpu::StreamView copy_stream() const noexcept { return copy_; }

  static constexpr std::size_t kMaxKept = 4;

 private:
  void check(const Batch& batch) const;
  /// Copies the step, the first sample and the labels to the device.
  void load_numbers(const Batch& batch, Deadline deadline);
  /// Copies the images from host memory.
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
  std::size_t image_bytes_;  // images of one batch, in fp32
  gpu::DeviceMemory staging_;
  PinnedSlots image_slots_;
  PinnedSlots step_slots_;  // in each slot: the step's numbers, then the labels
  std::array<gpu::Event, PinnedSlots::kSlots> arrived_, consumed_;
  std::map<std::uint64_t, gpu::DeviceMemory> kept_;  // by Batch::content: images in the form that operations read
  std::uint64_t there_ = 0;                          // Batch::content of the images that operations read now
  bool full_ = false;
};

}  // namespace hvd::models::cudnn
