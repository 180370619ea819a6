// Computes in double precision what one operation must give, with the error bounds of bounds.h. The reference starts
// from the inputs that the library itself read. Pure functions.
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
  std::uint64_t seed = 0;  ///< seed of the dropout mask of step 0, whose samples start at 0
  std::span<const std::int32_t> labels;
  bool winograd = false;  ///< the library computes this convolution by Winograd's algorithm
};

struct Expected {
  TensorId id = kNoTensor;
  Tensor tensor;
  bool stored_in_compute_type = true;  ///< if false, the library stores the tensor in fp32 for every compute type
};

/// Returns all outputs of `node` that are worth comparing. `known` contains the inputs of `node`. An input has a bound
/// if it was fused away, because the library does not keep its values. A rectifier gives the bound of its input to its
/// output.
std::vector<Expected> expected_outputs(const Graph& graph, const Node& node, const std::map<TensorId, Tensor>& known,
                                       const Circumstances& with);

/// Returns the absolute values of the elements of `tensor`, without a bound.
Tensor absolute(const Tensor& tensor);

}  // namespace hvd::models::testing
