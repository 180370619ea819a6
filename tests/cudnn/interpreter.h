// Runs a Program in double precision, operation by operation as they stand in it: what a GPU has to compute, whatever
// was fused. Shares no code with the reference backend's walk over the graph, only its arithmetic (reference/ops.h).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "models/cudnn/program.h"
#include "models/dropout.h"
#include "models/reference/ops.h"

namespace hvd::models::cudnn::testing {

class Interpreter {
 public:
  /// Both must outlive it.
  Interpreter(const Graph& graph, const Program& program);

  /// Row-major values of an arena's tensor (images, parameters, running statistics).
  void set(TensorId tensor, std::span<const double> values);
  /// Groups in order. The dropout masks are those of `seed`, step 0, sample 0. After group i, the values whose last
  /// reader it is (`last_readers`, by value; empty: none) are gone.
  void run(std::span<const std::int32_t> labels, std::uint64_t seed, std::span<const int> last_readers = {});
  /// What is in memory for `tensor` after the run. Fails an assertion if nothing is.
  [[nodiscard]] std::vector<double> get(TensorId tensor) const;

 private:
  using Data = std::vector<double>;

  Data read(ValueId id) const;
  void write(ValueId id, Data data);
  void run(const Operation& operation, std::span<const std::int32_t> labels, std::uint64_t seed);
  bool run_product(const Operation& operation);
  bool run_columns(const Operation& operation);
  bool run_norm(const Operation& operation);
  bool run_pointwise(const Operation& operation);
  bool run_pool(const Operation& operation);
  [[nodiscard]] const Shape& shape(ValueId id) const { return program_.value(id).shape; }

  const Graph& graph_;
  const Program& program_;
  std::vector<Data> memory_;  // by value; slices live in their root
};

}  // namespace hvd::models::cudnn::testing
