// Element types and reduction operations shared by every layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hvd {

enum class DataType : std::uint8_t { kF32, kF64, kF16, kBF16, kI32, kI64, kU8, kI8, kI16 };
inline constexpr std::uint8_t kDataTypes = 9;

/// Size of one element in bytes.
constexpr std::size_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::kF64:
    case DataType::kI64: return 8;
    case DataType::kF32:
    case DataType::kI32: return 4;
    case DataType::kF16:
    case DataType::kBF16:
    case DataType::kI16: return 2;
    case DataType::kU8:
    case DataType::kI8: return 1;
  }
  return 0;
}

/// "fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8", "int8", "int16".
std::string_view name(DataType type) noexcept;
std::optional<DataType> parse_data_type(std::string_view text) noexcept;

enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax, kProduct };
inline constexpr std::uint8_t kReduceOps = 5;

/// "sum", "average", "min", "max", "product".
std::string_view name(ReduceOp op) noexcept;

/// Bitwise reduction of the control plane's status words.
enum class BitOp : std::uint8_t { kAnd, kOr };

}  // namespace hvd
