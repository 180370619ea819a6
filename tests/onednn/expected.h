// What one operation must give: its outputs in double precision with the error bounds of bounds.h, recomputed by
// the reference from the inputs that the library itself read. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "models/graph/graph.h"
#include "tests/onednn/bounds.h"

namespace hvd::models::testing {

/// What an operation depends on besides its inputs.
struct Circumstances {
  DataType compute = DataType::kF32;
  std::uint64_t seed = 0;  ///< of dropout; step 0, samples from 0 on
  std::span<const std::int32_t> labels;
  bool winograd = false;  ///< a convolution that the library computes by Winograd's algorithm
};

struct Expected {
  TensorId id = kNoTensor;
  Tensor tensor;
  bool stored_in_compute_type = true;  ///< else in fp32 whatever the compute type
};

/// Every output of `node` that is a tensor with values worth comparing. `known` holds its inputs; where one of
/// them carries a bound (it was fused away), a rectifier hands that on.
std::vector<Expected> expected_outputs(const Graph& graph, const Node& node, const std::map<TensorId, Tensor>& known,
                                       const Circumstances& with);

/// |x|, elementwise; without a bound.
Tensor absolute(const Tensor& of);

}  // namespace hvd::models::testing
