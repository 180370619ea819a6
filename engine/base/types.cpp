#include "engine/base/types.h"

#include <array>
#include <utility>

namespace hvd {
namespace {

constexpr std::array<std::pair<DataType, std::string_view>, kDataTypes> kDataTypeNames{{
    {DataType::kF32, "fp32"},
    {DataType::kF64, "fp64"},
    {DataType::kF16, "fp16"},
    {DataType::kBF16, "bf16"},
    {DataType::kI32, "int32"},
    {DataType::kI64, "int64"},
    {DataType::kU8, "uint8"},
    {DataType::kI8, "int8"},
    {DataType::kI16, "int16"},
}};

}  // namespace

std::string_view name(DataType type) noexcept {
  for (const auto& [value, text] : kDataTypeNames) {
    if (value == type) return text;
  }
  return "unknown";
}

std::optional<DataType> parse_data_type(std::string_view text) noexcept {
  for (const auto& [value, candidate] : kDataTypeNames) {
    if (candidate == text) return value;
  }
  return std::nullopt;
}

std::string_view name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kProduct: return "product";
  }
  return "unknown";
}

}  // namespace hvd
