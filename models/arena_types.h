// Converts between the element type of a gradient arena and double, for backends and tests. Pure.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/types.h"

namespace hvd::models {

/// Checks that `type` is fp32, fp64, fp16 or bf16. Errors: invalid_argument for other types.
void require_floating(DataType type);

/// Converts `values` to `type`, rounds to nearest even, and writes them to `out`, which must have at least
/// values.size() * size_of(type) bytes.
void store(DataType type, std::span<const double> values, std::span<std::byte> out);

[[nodiscard]] double load(DataType type, std::span<const std::byte> array, std::size_t index);

}  // namespace hvd::models
