// Runs a Program in double precision, one operation after another. A GPU must compute the same results, however the
// operations are fused. The interpreter uses the arithmetic of the reference (reference/ops.h), but not its order of
// nodes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "models/cudnn/lowering/program.h"
#include "models/random.h"
#include "tests/models/reference/ops.h"

namespace hvd::models::cudnn::testing {

class Interpreter {
 public:
  /// `graph` and `program` must outlive the interpreter.
  Interpreter(const Graph& graph, const Program& program);

  /// Sets the tensor `tensor` to row-major `values`. The tensor must live in an arena (images, parameters, running
  /// statistics).
  void set(TensorId tensor, std::span<const double> values);
  /// Runs the groups in order. Dropout masks are those of `seed` for step 0 and sample 0. `last_readers` has for each
  /// value the last group that reads the value. The value is erased after this group. If `last_readers` is empty, no
  /// value is erased.
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
  std::vector<Data> memory_;  // by ValueId; a slice has no memory of its own, its elements are in its root value
};

}  // namespace hvd::models::cudnn::testing
