#include "models/cudnn/run/step_memory.h"

#include <algorithm>

#include "engine/base/error.h"

namespace hvd::models::cudnn {
namespace {

constexpr std::size_t kScalarBytes = 256;  // StepScalars in the first half, LossScale in the second
static_assert(sizeof(kernels::StepScalars) <= kScalarBytes / 2 && sizeof(kernels::LossScale) <= kScalarBytes / 2);

std::string mebibytes(std::size_t bytes) { return std::to_string((bytes + (std::size_t{1} << 20) - 1) >> 20) + " MiB"; }

}  // namespace

MemoryNeed memory_need(const MemoryLayout& layout, std::int64_t batch, std::size_t workspace, int input_copies) {
  const std::size_t images_fp32 = layout.image_elements * sizeof(float);
  const std::size_t grows =
      layout.scratch + layout.images + layout.labels + static_cast<std::size_t>(input_copies) * images_fp32;
  MemoryNeed need{.batch = batch};
  need.per_image = (grows + static_cast<std::size_t>(batch) - 1) / static_cast<std::size_t>(batch);
  need.fixed = layout.total() - layout.scratch - layout.images - layout.labels + workspace + kScalarBytes +
               layout.parameter_elements / kSlotElements;
  return need;
}

std::string too_big_text(const MemoryNeed& need, std::size_t free_bytes) {
  std::string text = "batch " + std::to_string(need.batch) + " needs " + mebibytes(need.total()) +
                     " of device memory, " + std::to_string(free_bytes >> 20) + " MiB are free; ";
  const std::size_t fits = free_bytes > need.fixed ? (free_bytes - need.fixed) / need.per_image : 0;
  if (fits == 0) return text + "not even batch 1 fits: is something else using this GPU?";
  return text + "batch " + std::to_string(fits) + " fits (--batch-size)";
}

StepMemory::StepMemory(gpu::GpuRuntime& runtime, const MemoryLayout& layout, const MemoryNeed& need,
                       std::size_t workspace, const ArenaAllocator& allocate, gpu::StreamView stream)
    : runtime_(runtime) {
  if (const std::size_t free = runtime.memory().free_bytes; need.total() > free) {
    throw Error(Errc::kOutOfMemory, runtime.label() + ": " + too_big_text(need, free));
  }
  const auto make = [&](gpu::DeviceMemory& memory, std::size_t bytes, const char* what) {
    memory = runtime.allocate(std::max(bytes, kScratchAlignBytes), what);
    runtime.fill(memory->bytes.data(), std::byte{0}, memory->bytes.size(), stream);
    return memory->bytes;
  };
  arenas_.gradients = allocate(layout.gradients);
  arenas_.weights = make(weights_, layout.weights, "the weights");
  arenas_.master = layout.master == 0 ? arenas_.weights : make(master_, layout.master, "the weights in fp32");
  arenas_.momentum = make(momentum_, layout.momentum, "the momentum");
  arenas_.state = make(state_, layout.state, "the running statistics");
  arenas_.images = make(images_, layout.images, "the images");
  arenas_.labels = make(labels_, layout.labels, "the labels");
  arenas_.padded_weights = make(padded_weights_, layout.padded_weights, "the padded weights");
  arenas_.scratch = make(scratch_, layout.scratch, "the activations");
  make(decays_, layout.parameter_elements / kSlotElements, "the table of weight decay");
  make(scalars_, kScalarBytes, "the step's numbers");
  resize_workspace(workspace);
}

void StepMemory::resize_workspace(std::size_t bytes) {
  workspace_.reset();
  workspace_ = runtime_.allocate(std::max(bytes, kScratchAlignBytes), "the workspace");
  arenas_.workspace = workspace_->bytes;
}

kernels::StepScalars* StepMemory::scalars() const noexcept {
  return reinterpret_cast<kernels::StepScalars*>(scalars_->bytes.data());
}

kernels::LossScale* StepMemory::loss_scale() const noexcept {
  return reinterpret_cast<kernels::LossScale*>(scalars_->bytes.data() + kScalarBytes / 2);
}

}  // namespace hvd::models::cudnn
