// Elements of any floating type in host memory, as doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "engine/base/float16.h"
#include "engine/base/types.h"
#include "models/arena_types.h"

namespace hvd::models::cudnn::testing {

inline double read_element(const std::byte* memory, DataType type, std::int64_t at) {
  const auto bytes = static_cast<std::size_t>(at) * size_of(type);
  return load(type, {memory + bytes, size_of(type)}, 0);
}
inline void write_element(std::byte* memory, DataType type, std::int64_t at, double value) {
  store(type, {&value, 1}, {memory + static_cast<std::size_t>(at) * size_of(type), size_of(type)});
}
/// To the nearest number of `type`.
inline double rounded(DataType type, double value) {
  std::byte memory[sizeof(double)];
  write_element(memory, type, 0, value);
  return read_element(memory, type, 0);
}

}  // namespace hvd::models::cudnn::testing
