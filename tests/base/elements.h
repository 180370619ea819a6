// Reads and writes single elements of any type as doubles. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "engine/base/float16.h"
#include "engine/base/types.h"

namespace hvd::test {

/// Calls `use` with a value of the C++ type that stores an element of `type`. fp16 and bf16 are stored as
/// std::uint16_t.
template <class Use>
auto with_element_of(DataType type, Use&& use) {
  switch (type) {
    case DataType::kF32: return use(float{});
    case DataType::kF64: return use(double{});
    case DataType::kF16:
    case DataType::kBF16: return use(std::uint16_t{});
    case DataType::kI32: return use(std::int32_t{});
    case DataType::kI64: return use(std::int64_t{});
    case DataType::kU8: return use(std::uint8_t{});
    case DataType::kI8: return use(std::int8_t{});
    case DataType::kI16: return use(std::int16_t{});
  }
  throw std::invalid_argument("no such type");
}

inline double load_element(const std::byte* from, DataType type) {
  return with_element_of(type, [&](auto element) -> double {
    std::memcpy(&element, from, sizeof element);
    if constexpr (std::is_same_v<decltype(element), std::uint16_t>) {
      return type == DataType::kF16 ? fp16_to_float(element) : bf16_to_float(element);
    } else {
      return static_cast<double>(element);
    }
  });
}

inline void store_element(std::byte* to, double value, DataType type) {
  with_element_of(type, [&](auto element) {
    if constexpr (std::is_same_v<decltype(element), std::uint16_t>) {
      const auto single = static_cast<float>(value);
      element = type == DataType::kF16 ? float_to_fp16(single) : float_to_bf16(single);
    } else {
      element = static_cast<decltype(element)>(value);
    }
    std::memcpy(to, &element, sizeof element);
  });
}

}  // namespace hvd::test
