// Runs a Program in double precision, one operation after the other. The result is what a GPU must compute, however the
// operations are fused. Uses the reference's arithmetic (reference/ops.h), but not its walk over the graph.
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
  /// `graph` and `program` must outlive the interpreter.
  Interpreter(const Graph& graph, const Program& program);

  /// Sets a tensor that lives in an arena (images, parameters, running statistics) to row-major `values`.
  void set(TensorId tensor, std::span<const double> values);
  /// Runs the groups in order. Dropout masks are those of `seed`, step 0, sample 0. `last_readers` gives for each value
  /// the last group that reads it; after this group the value is erased. Empty: no value is erased.
  void run(std::span<const std::int32_t> labels, std::uint64_t seed, std::span<const int> last_readers = {});
  /// Returns the values of `tensor` after the run. Fails an assertion if the tensor has no memory.
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
  std::vector<Data> memory_;  // by ValueId; the elements of a slice are stored in its root
};

}  // namespace hvd::models::cudnn::testing
