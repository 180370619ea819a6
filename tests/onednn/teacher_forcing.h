// Checks a compiled graph operation by operation. The double-precision reference recomputes each operation from the
// inputs that the library itself used, and the results must agree within the rounding of that operation. Errors of
// earlier layers therefore do not count against later ones, and no bound depends on the network's depth.
#pragma once

#include <string>
#include <vector>

#include "models/train_step.h"

namespace hvd::models::testing {

struct Disagreement {
  std::string node, tensor;
  double error = 0, bound = 0;  ///< at the element with the largest error / bound
};

struct Comparison {
  std::size_t tensors = 0;  ///< number of compared tensors
  std::size_t elements = 0;
  double worst_ratio = 0;  ///< largest error / bound
  std::string worst;       ///< where the worst ratio was found
  std::vector<Disagreement> failures;
  /// True if a TrainStep, which works in place and reuses memory, gives the same loss and gradients, bit for bit.
  bool equal_to_step = false;
};

/// Runs one step of `graph` (differentiated) on synthetic data and compares every tensor that the library keeps.
Comparison compare_operations(const Graph& graph, DataType compute, DataType gradient);

}  // namespace hvd::models::testing
