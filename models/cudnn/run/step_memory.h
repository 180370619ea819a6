// Device memory of one training step: the arenas of a MemoryLayout, and the error text if the arenas do not fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/gpu/runtime.h"
#include "models/cudnn/kernels/kernels.h"
#include "models/cudnn/plan/memory_layout.h"
#include "models/train_step.h"

namespace hvd::models::cudnn {

/// Bytes of device memory that a step needs: fixed + batch * per_image.
struct MemoryNeed {
  std::size_t fixed = 0;
  std::size_t per_image = 0;
  std::int64_t batch = 0;
  [[nodiscard]] std::size_t total() const { return fixed + static_cast<std::size_t>(batch) * per_image; }
};
/// `input_copies`: number of fp32 copies of the batch's images that are not part of `layout`. Pure.
MemoryNeed memory_need(const MemoryLayout& layout, std::int64_t batch, std::size_t workspace, int input_copies);
/// Returns "batch 512 needs 91234 MiB of device memory, 80000 MiB are free; batch 448 fits". Pure.
std::string too_big_text(const MemoryNeed& need, std::size_t free_bytes);

class StepMemory {
 public:
  /// Allocates all memory and, on `stream`, zeroes everything except the workspace. `allocate` provides the gradient
  /// arena. Errors: out_of_memory, before anything is allocated, if `need` is more than the free memory.
  StepMemory(gpu::GpuRuntime& runtime, const MemoryLayout& layout, const MemoryNeed& need, std::size_t workspace,
             const ArenaAllocator& allocate, gpu::StreamView stream);

  /// Replaces the workspace by a new one. No work on the GPU may still use the old workspace.
  void resize_workspace(std::size_t bytes);

  [[nodiscard]] const Arenas& arenas() const noexcept { return arenas_; }
  [[nodiscard]] std::span<std::byte> decays() const noexcept { return decays_->bytes; }
  [[nodiscard]] kernels::StepScalars* scalars() const noexcept;
  [[nodiscard]] kernels::LossScale* loss_scale() const noexcept;

 private:
  gpu::GpuRuntime& runtime_;
  gpu::DeviceMemory weights_, master_, momentum_, state_, images_, labels_, padded_weights_, scratch_, workspace_,
      decays_, scalars_;
  Arenas arenas_;
};

}  // namespace hvd::models::cudnn
