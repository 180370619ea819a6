// Checks a compiled graph operation by operation. The double-precision reference recomputes each operation from the
// inputs that the library itself used. The results must agree within the rounding of this operation. Errors of earlier
// layers therefore do not matter, and no bound depends on the depth of the network.
#pragma once

#include <string>
#include <vector>

#include "models/train_step.h"

namespace hvd::models::testing {

struct Disagreement {
  std::string node, tensor;
  double error = 0, bound = 0;  ///< at the element with the largest quotient error / bound
};

struct Comparison {
  std::size_t tensors = 0;  ///< number of compared tensors
  std::size_t elements = 0;
  double worst_ratio = 0;  ///< the largest quotient error / bound of all elements
  std::string worst;       ///< names the element with the largest quotient
  std::vector<Disagreement> failures;
  /// True if a TrainStep, which works in place and reuses memory, gives bit for bit the same loss and gradients.
  bool equal_to_step = false;
};

/// Runs one step of the differentiated graph `graph` on synthetic data. Compares every tensor that the library keeps.
Comparison compare_operations(const Graph& graph, DataType compute, DataType gradient);

}  // namespace hvd::models::testing
