// Reads elements of any floating type in host memory as doubles, and writes doubles as elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "engine/base/float16.h"
#include "engine/base/types.h"
#include "models/train_step.h"

namespace hvd::models::cudnn::testing {

inline double read_element(const std::byte* memory, DataType type, std::int64_t at) {
  const auto bytes = static_cast<std::size_t>(at) * size_of(type);
  return load(type, {memory + bytes, size_of(type)}, 0);
}
inline void write_element(std::byte* memory, DataType type, std::int64_t at, double value) {
  store(type, {&value, 1}, {memory + static_cast<std::size_t>(at) * size_of(type), size_of(type)});
}
/// Rounds `value` to the nearest number of `type`.
inline double rounded(DataType type, double value) {
  std::byte memory[sizeof(double)];
  write_element(memory, type, 0, value);
  return read_element(memory, type, 0);
}

/// Rounds `value` to tf32 (fp32 with ten bits of mantissa). Rounds ties away from zero, as the GPU's instruction
/// cvt.rna does.
inline double rounded_to_tf32(double value) {
  const auto single = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  bits = (bits + 0x1000U) & ~0x1fffU;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return static_cast<double>(result);
}

}  // namespace hvd::models::cudnn::testing
