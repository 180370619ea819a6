// The outputs that one operation must give, in double precision with the error bounds of bounds.h. The reference
// computes them from the inputs that the library itself read. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "models/graph/graph.h"
#include "tests/onednn/bounds.h"

namespace hvd::models::testing {

/// The conditions that an operation depends on besides its inputs.
struct Circumstances {
  DataType compute = DataType::kF32;
  std::uint64_t seed = 0;  ///< of dropout, for step 0 and samples from 0 on
  std::span<const std::int32_t> labels;
  bool winograd = false;  ///< the library computes this convolution by Winograd's algorithm
};

struct Expected {
  TensorId id = kNoTensor;
  Tensor tensor;
  bool stored_in_compute_type = true;  ///< if false, stored in fp32 for every compute type
};

/// Returns every output of `node` that is a tensor with values worth comparing. `known` holds its inputs. If an input
/// has a bound (because it was fused away), a rectifier passes the bound on.
std::vector<Expected> expected_outputs(const Graph& graph, const Node& node, const std::map<TensorId, Tensor>& known,
                                       const Circumstances& with);

/// The absolute values of `of`, elementwise, without a bound.
Tensor absolute(const Tensor& of);

}  // namespace hvd::models::testing
