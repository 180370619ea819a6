#include "models/train_step.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "engine/base/align.h"
#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/float16.h"

namespace hvd::models {
namespace {

constexpr std::size_t kPage = 4096;

struct FreeBlocks {
  void operator()(std::vector<std::span<std::byte>>* blocks) const noexcept {
    for (const auto block : *blocks) std::free(block.data());
    delete blocks;
  }
};

template <class T>
void put(std::span<std::byte> out, std::size_t index, T value) {
  std::memcpy(out.data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T get(std::span<const std::byte> array, std::size_t index) {
  T value{};
  std::memcpy(&value, array.data() + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

HeapArena make_heap_arena() {
  HeapArena arena;
  arena.blocks = {new std::vector<std::span<std::byte>>(), FreeBlocks{}};
  arena.allocate = [blocks = arena.blocks](std::size_t bytes) {
    const std::size_t rounded = bytes == 0 ? kPage : align_up(bytes, kPage);
    blocks->reserve(blocks->size() + 1);  // so that push_back below cannot throw and leak
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
    if (memory == nullptr) {
      throw Error(Errc::kOutOfMemory, "cannot allocate " + std::to_string(rounded) + " bytes for an arena");
    }
    std::memset(memory, 0, rounded);
    const std::span<std::byte> block(memory, bytes);
    blocks->push_back(block);
    return block;
  };
  return arena;
}

void require_floating(DataType type) {
  if (type == DataType::kF32 || type == DataType::kF64 || type == DataType::kF16 || type == DataType::kBF16) return;
  throw Error(Errc::kInvalidArgument, "gradients cannot be " + std::string(name(type)) +
                                          "; choose fp32, fp64, fp16 or bf16 for the all-reduce");
}

void store(DataType type, std::span<const double> values, std::span<std::byte> out) {
  HVD_ASSERT(out.size() >= values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (type) {
      case DataType::kF64: put(out, i, values[i]); break;
      case DataType::kF32: put(out, i, static_cast<float>(values[i])); break;
      case DataType::kF16: put(out, i, float_to_fp16(static_cast<float>(values[i]))); break;
      case DataType::kBF16: put(out, i, float_to_bf16(static_cast<float>(values[i]))); break;
      default: HVD_ASSERT(!"a gradient type that require_floating() lets through");
    }
  }
}

double load(DataType type, std::span<const std::byte> array, std::size_t index) {
  switch (type) {
    case DataType::kF64: return get<double>(array, index);
    case DataType::kF32: return static_cast<double>(get<float>(array, index));
    case DataType::kF16: return static_cast<double>(fp16_to_float(get<std::uint16_t>(array, index)));
    case DataType::kBF16: return static_cast<double>(bf16_to_float(get<std::uint16_t>(array, index)));
    default: HVD_ASSERT(!"a gradient type that require_floating() lets through");
  }
  return 0;
}

}  // namespace hvd::models
