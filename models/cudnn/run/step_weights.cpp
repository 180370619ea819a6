#include "models/cudnn/run/step_weights.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/random.h"
#include "models/train_step.h"

namespace hvd::models::cudnn {

float first_loss_scale(ComputeType compute, double wanted) {
  constexpr float kFirstOfDynamic = 65536;
  if (compute != ComputeType::kFp16) return 1;
  return wanted > 0 ? static_cast<float>(wanted) : kFirstOfDynamic;
}

StepWeights::StepWeights(const Graph& graph, const Plan& plan, const StepMemory& memory, const kernels::Table& kernels,
                         gpu::GpuRuntime& runtime, gpu::StreamView stream)
    : graph_(graph), plan_(plan), memory_(memory), kernels_(kernels), stream_(stream), staged_copy_(runtime) {}

const ArenaSlot& StepWeights::slot_of(std::size_t parameter, std::size_t size) const {
  const ArenaSlot& slot = plan_.memory.slots.at(parameter);
  if (size == static_cast<std::size_t>(slot.shape.count())) return slot;
  throw Error(Errc::kInvalidArgument,
              slot.name + " has " + std::to_string(slot.shape.count()) + " values, not " + std::to_string(size));
}

bool StepWeights::is_variance(TensorId tensor) const {
  return std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                     [&](const Node& node) { return node.kind == OpKind::kBatchNorm && node.inputs[4] == tensor; });
}

void StepWeights::upload_constants(float loss_scale) {
  std::vector<std::uint8_t> decays(plan_.memory.parameter_elements / kSlotElements, 0);
  for (std::size_t p = 0; p < graph_.parameters.size(); ++p) {
    const ArenaSlot& slot = plan_.memory.slots[p];
    const auto first = decays.begin() + static_cast<std::ptrdiff_t>(slot.offset / kSlotElements);
    std::fill_n(first, slot.count / kSlotElements, graph_.parameters[p].decay ? 1 : 0);
  }
  staged_copy_.to_device(memory_.decays().data(), std::as_bytes(std::span(decays)), stream_);
  const std::array<kernels::LossScale, 1> first{kernels::LossScale{.scale = loss_scale}};
  staged_copy_.to_device(reinterpret_cast<std::byte*>(memory_.loss_scale()), std::as_bytes(std::span(first)), stream_);
}

void StepWeights::upload_initial(std::uint64_t seed) {
  std::vector<float> values;
  for (std::size_t p = 0; p < graph_.parameters.size(); ++p) {
    const ArenaSlot& slot = plan_.memory.slots[p];
    values.resize(static_cast<std::size_t>(slot.shape.count()));
    initial_value(graph_.parameters[p], slot.shape, seed, values);
    staged_copy_.to_device(memory_.arenas().master.data() + slot.offset * sizeof(float),
                           std::as_bytes(std::span(values)), stream_);
  }
  std::vector<float> state(plan_.memory.state / sizeof(float), 0);
  for (std::size_t id = 0; id < plan_.program.values.size(); ++id) {
    const Value& value = plan_.program.values[id];
    if (value.storage != Storage::kState || !is_variance(value.tensor)) continue;
    const auto offset = static_cast<std::ptrdiff_t>(plan_.memory.offsets[id] / sizeof(float));
    std::fill_n(state.begin() + offset, value.shape.count(), 1.0F);
  }
  staged_copy_.to_device(memory_.arenas().state.data(), std::as_bytes(std::span(state)), stream_);
  refresh_copies();
}

void StepWeights::refresh_copies() {
  const DataType type = storage(plan_.options.compute);
  if (type == DataType::kF32) return;  // operations read the master weights
  const kernels::Copy all{.from = memory_.arenas().master.data(),
                          .to = memory_.arenas().weights.data(),
                          .from_type = DataType::kF32,
                          .to_type = type,
                          .count = static_cast<std::int64_t>(plan_.memory.parameter_elements)};
  kernels_.copy_all({&all, 1}, static_cast<kernels::Stream>(stream_.native));
}

void StepWeights::read_parameter(std::size_t parameter, std::span<float> out) {
  const ArenaSlot& slot = slot_of(parameter, out.size());
  staged_copy_.to_host(std::as_writable_bytes(out), memory_.arenas().master.data() + slot.offset * sizeof(float),
                       stream_);
}

void StepWeights::write_parameter(std::size_t parameter, std::span<const float> in) {
  const ArenaSlot& slot = slot_of(parameter, in.size());
  staged_copy_.to_device(memory_.arenas().master.data() + slot.offset * sizeof(float), std::as_bytes(in), stream_);
  refresh_copies();
}

void StepWeights::read_gradient(std::size_t parameter, std::span<float> out) {
  const ArenaSlot& slot = slot_of(parameter, out.size());
  const DataType type = plan_.options.gradient;
  std::vector<std::byte> raw(out.size() * size_of(type));
  staged_copy_.to_host(raw, memory_.arenas().gradients.data() + slot.offset * size_of(type), stream_);
  std::array<kernels::LossScale, 1> scale;
  staged_copy_.to_host(std::as_writable_bytes(std::span(scale)), reinterpret_cast<std::byte*>(memory_.loss_scale()),
                       stream_);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(load(type, raw, i) / static_cast<double>(scale[0].scale));
  }
}

}  // namespace hvd::models::cudnn
