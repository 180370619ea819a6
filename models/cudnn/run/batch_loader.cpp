#include "models/cudnn/run/batch_loader.h"

#include <cstring>
#include <string>

#include "engine/base/align.h"
#include "engine/base/error.h"

namespace hvd::models::cudnn {
namespace {

std::size_t aligned(std::size_t bytes) { return align_up(bytes, kScratchAlignBytes); }

// Bytes of the fields `step` and `first_sample`, which are neighbours in StepScalars.
constexpr std::size_t kNumberBytes = 2 * sizeof(std::uint64_t);
static_assert(offsetof(kernels::StepScalars, first_sample) ==
              offsetof(kernels::StepScalars, step) + sizeof(std::uint64_t));

}  // namespace

BatchLoader::BatchLoader(const Graph& graph, const kernels::Matrix& images, const StepMemory& memory,
                         const kernels::Table& kernels, gpu::GpuRuntime& runtime, gpu::StreamView compute)
    : graph_(graph),
      images_(images),
      memory_(memory),
      kernels_(kernels),
      runtime_(runtime),
      compute_(compute),
      copy_(runtime.make_stream(gpu::Priority::kNormal)),
      image_bytes_(static_cast<std::size_t>(graph.tensor(graph.images).shape.count()) * sizeof(float)),
      staging_(runtime.allocate(PinnedSlots::kSlots * aligned(image_bytes_), "images on their way")),
      image_slots_(runtime, image_bytes_, "images on their way"),
      step_slots_(runtime, kNumberBytes + static_cast<std::size_t>(graph.batch_size) * sizeof(std::int32_t),
                  "a batch's numbers and labels") {
  for (gpu::Event& event : arrived_) event = runtime.make_event(gpu::Timing::kOff);
  for (gpu::Event& event : consumed_) event = runtime.make_event(gpu::Timing::kOff);
}

std::size_t BatchLoader::device_bytes() const noexcept {
  std::size_t bytes = staging_->bytes.size();
  for (const auto& [content, memory] : kept_) bytes += memory->bytes.size();
  return bytes;
}

void BatchLoader::check(const Batch& batch) const {
  const Shape& shape = graph_.tensor(graph_.images).shape;
  if (batch.images.size() == static_cast<std::size_t>(shape.count()) &&
      batch.labels.size() == static_cast<std::size_t>(graph_.batch_size)) {
    return;
  }
  throw Error(Errc::kInvalidArgument, graph_.model + ": a batch of " + std::to_string(batch.labels.size()) +
                                          " labels and " + std::to_string(batch.images.size()) +
                                          " values, where the network takes " + shape.text());
}

void BatchLoader::load(const Batch& batch, Deadline deadline) {
  check(batch);
  load_numbers(batch, deadline);
  if (batch.content != 0 && batch.content == there_) return;  // the images are still there: no operation writes to them
  there_ = 0;
  if (const auto kept = kept_.find(batch.content); kept != kept_.end()) {
    const std::span<std::byte> images = memory_.arenas().images;
    runtime_.copy(images.data(), kept->second->bytes.data(), images.size(), compute_);
  } else {
    cross(batch, deadline);
    if (batch.content != 0) keep(batch.content);
  }
  there_ = batch.content;
}

void BatchLoader::load_numbers(const Batch& batch, Deadline deadline) {
  const std::array<std::uint64_t, 2> numbers{batch.step, batch.first_sample};
  const std::span<std::byte> slot = step_slots_.next(deadline);
  std::memcpy(slot.data(), numbers.data(), kNumberBytes);
  std::memcpy(&slot[kNumberBytes], batch.labels.data(), batch.labels.size_bytes());
  runtime_.copy(&memory_.scalars()->step, slot.data(), kNumberBytes, compute_);
  runtime_.copy(memory_.arenas().labels.data(), &slot[kNumberBytes], batch.labels.size_bytes(), compute_);
  step_slots_.emptied_on(compute_);
}

void BatchLoader::cross(const Batch& batch, Deadline deadline) {
  const std::span<std::byte> slot = image_slots_.next(deadline);
  std::memcpy(slot.data(), batch.images.data(), image_bytes_);

  const std::size_t k = image_slots_.index();
  std::byte* const staged = staging_->bytes.data() + k * aligned(image_bytes_);
  runtime_.wait(copy_, consumed_.at(k));
  runtime_.copy(staged, slot.data(), image_bytes_, copy_);
  image_slots_.emptied_on(copy_);
  runtime_.record(arrived_.at(k), copy_);
  runtime_.wait(compute_, arrived_.at(k));
  convert(staged);
  runtime_.record(consumed_.at(k), compute_);
}

// Converts images to the type that operations read. Padding channels are zeroed once, when the memory is allocated.
void BatchLoader::convert(std::byte* staged) {
  const auto stream = static_cast<kernels::Stream>(compute_.native);
  const std::int64_t channels = images_.channels;
  if (images_.pitch != channels) {
    return kernels_.copy_matrix({staged, DataType::kF32, images_.rows, channels, channels}, images_, stream);
  }
  const kernels::Copy all{.from = staged,
                          .to = images_.data,
                          .from_type = DataType::kF32,
                          .to_type = images_.type,
                          .count = images_.rows * channels};
  kernels_.copy_all({&all, 1}, stream);
}

void BatchLoader::keep(std::uint64_t content) {
  if (full_ || kept_.size() == kMaxKept) return;
  const std::span<std::byte> images = memory_.arenas().images;
  gpu::DeviceMemory memory;
  try {
    memory = runtime_.allocate(images.size(), "images to be used again");
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory) throw;
    full_ = true;  // images that are not kept are copied from the host at each use
    return;
  }
  runtime_.copy(memory->bytes.data(), images.data(), images.size(), compute_);
  kept_[content] = std::move(memory);
}

}  // namespace hvd::models::cudnn
