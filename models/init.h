// Initial weights are a pure function of (seed, parameter name, shape), and equal for every backend and rank.
#pragma once

#include <cstdint>
#include <span>

#include "models/graph/graph.h"

namespace hvd::models {

/// Fills `out` (logical row-major, shape.count() elements). The Philox stream is the hash of the parameter's name.
void initial_value(const Parameter& parameter, const Shape& shape, std::uint64_t seed, std::span<float> out);

}  // namespace hvd::models
