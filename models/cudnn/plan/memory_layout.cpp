#include "models/cudnn/plan/memory_layout.h"

#include <algorithm>
#include <map>

#include "engine/base/align.h"
#include "engine/base/assert.h"
#include "models/graph/memory_plan.h"

namespace hvd::models::cudnn {
namespace {

std::size_t bytes_of(const Value& value) { return static_cast<std::size_t>(value.shape.count()) * size_of(value.type); }

struct Life {
  int first = -1, last = -1;  // numbers of the first and last group that touch the value; -1: none does
};

// Returns the life of each scratch value that is not a slice, including the lives of its slices.
std::map<ValueId, Life> lives(const Program& program) {
  std::map<ValueId, Life> result;
  for (std::size_t i = 0; i < program.groups.size(); ++i) {
    const auto touch = [&](ValueId id) {
      const ValueId root = placement(program, id).root;
      if (program.value(root).storage != Storage::kScratch) return;
      Life& life = result[root];
      if (life.first < 0) life.first = static_cast<int>(i);
      life.last = static_cast<int>(i);
    };
    for (const ValueId id : program.groups[i].writes) touch(id);
    for (const ValueId id : reads(program.groups[i])) touch(id);
  }
  return result;
}

}  // namespace

std::vector<int> last_readers(const Program& program) {
  std::vector<int> last(program.values.size(), -1);
  const std::map<ValueId, Life> all = lives(program);
  for (std::size_t id = 0; id < last.size(); ++id) {
    const auto life = all.find(placement(program, static_cast<ValueId>(id)).root);
    if (life != all.end()) last[id] = life->second.last;
  }
  return last;
}

MemoryLayout lay_out(const Graph& graph, const Program& program, ComputeType compute, DataType gradient) {
  MemoryLayout layout;
  layout.offsets.assign(program.values.size(), kNoOffset);

  std::map<TensorId, std::size_t> slot_of;
  for (const Parameter& parameter : graph.parameters) {
    const Shape& shape = graph.tensor(parameter.value).shape;
    const std::size_t count = align_up(static_cast<std::size_t>(shape.count()), kSlotElements);
    layout.slots.push_back(
        {.name = parameter.name, .offset = layout.parameter_elements, .count = count, .shape = shape});
    slot_of[parameter.value] = layout.parameter_elements;
    slot_of[parameter.gradient] = layout.parameter_elements;
    layout.parameter_elements += count;
  }
  const bool one_copy = storage(compute) == DataType::kF32;
  layout.weights = layout.parameter_elements * size_of(storage(compute));
  layout.master = one_copy ? 0 : layout.parameter_elements * sizeof(float);
  layout.gradients = layout.parameter_elements * size_of(gradient);
  layout.momentum = layout.parameter_elements * sizeof(float);

  for (std::size_t id = 0; id < program.values.size(); ++id) {
    const Value& value = program.values[id];
    if (value.parent != kNoValue) continue;
    switch (value.storage) {
      case Storage::kImages:
        layout.offsets[id] = 0;
        layout.images = bytes_of(value);
        layout.image_elements = static_cast<std::size_t>(own_elements(value));
        break;
      case Storage::kLabels:
        layout.offsets[id] = 0;
        layout.labels = bytes_of(value);
        break;
      case Storage::kParameter:
      case Storage::kGradient: layout.offsets[id] = slot_of.at(value.tensor) * size_of(value.type); break;
      case Storage::kState:
        layout.offsets[id] = layout.state;
        layout.state += align_up(bytes_of(value), kScratchAlignBytes);
        break;
      case Storage::kPaddedWeight:
        layout.offsets[id] = layout.padded_weights;
        layout.padded_weights += align_up(bytes_of(value), kScratchAlignBytes);
        break;
      case Storage::kScratch: break;
    }
  }

  std::vector<BufferUse> uses;
  std::vector<ValueId> roots;
  for (const auto& [root, life] : lives(program)) {
    const Value& value = program.value(root);
    uses.push_back({.name = value.name, .bytes = bytes_of(value), .first = life.first, .last = life.last});
    roots.push_back(root);
  }
  const MemoryPlan plan = plan_memory(uses, kScratchAlignBytes);
  layout.scratch = plan.arena_bytes;
  layout.scratch_lower_bound = plan.lower_bound_bytes;
  layout.scratch_without_reuse = plan.sum_bytes;
  for (std::size_t i = 0; i < roots.size(); ++i) layout.offsets[static_cast<std::size_t>(roots[i])] = plan.offsets[i];
  for (std::size_t id = 0; id < program.values.size(); ++id) {
    const Placement place = placement(program, static_cast<ValueId>(id));
    const std::size_t root = layout.offsets[static_cast<std::size_t>(place.root)];
    if (static_cast<std::size_t>(place.root) == id || root == kNoOffset) continue;
    layout.offsets[id] = root + static_cast<std::size_t>(place.offset) * size_of(program.values[id].type);
  }
  return layout;
}

kernels::Matrix matrix_of(const Program& program, ValueId id) {
  const Value& value = program.value(id);
  const std::int64_t channels = value.shape[value.shape.rank() - 1];
  return {.type = value.type,
          .rows = value.shape.count() / channels,
          .channels = channels,
          .pitch = placement(program, id).channels};
}

std::span<std::byte> Addresses::arena(const Value& value) const {
  switch (value.storage) {
    case Storage::kImages: return arenas_.images;
    case Storage::kLabels: return arenas_.labels;
    case Storage::kPaddedWeight: return arenas_.padded_weights;
    // Batch norm vectors are read in fp32, from `master`, even if the other weights have a smaller type.
    case Storage::kParameter: return value.type == storage_ ? arenas_.weights : arenas_.master;
    case Storage::kState: return arenas_.state;
    case Storage::kGradient: return arenas_.gradients;
    case Storage::kScratch: break;
  }
  return arenas_.scratch;
}

std::byte* Addresses::at(ValueId id) const {
  const Value& value = program_.value(id);
  const std::size_t offset = layout_.offsets.at(static_cast<std::size_t>(id));
  HVD_ASSERT(offset != kNoOffset);
  const std::span<std::byte> memory = arena(value);
  HVD_ASSERT(offset + size_of(value.type) <= memory.size());
  return memory.data() + offset;
}

kernels::Matrix Addresses::matrix(ValueId id) const {
  kernels::Matrix matrix = matrix_of(program_, id);
  matrix.data = at(id);
  return matrix;
}

kernels::Image Addresses::image(ValueId id) const {
  const Shape& shape = program_.value(id).shape;
  HVD_ASSERT(shape.rank() == 4);
  return {.matrix = matrix(id), .n = shape[0], .h = shape[1], .w = shape[2]};
}

}  // namespace hvd::models::cudnn
