#include "models/cudnn/plan/addresses.h"

#include "engine/base/assert.h"

namespace hvd::models::cudnn {

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
