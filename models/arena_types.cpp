#include "models/arena_types.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/float16.h"

namespace hvd::models {
namespace {

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
