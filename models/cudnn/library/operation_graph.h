// A group of operations as a graph of cuDNN's backend API.
//
// Layout: a tensor of rank 4 is NHWC in memory and NCHW in cuDNN's dimensions. A slice has the strides of the value
// from which the slice is cut. A vector is {1, c, 1, 1}. Products and pointwise operations compute in fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "models/cudnn/library/descriptor.h"
#include "models/cudnn/lowering/program.h"

namespace hvd::models::cudnn {

/// A value of a group, with the id that cuDNN uses for it. Ids count values in order of appearance. Groups of equal
/// signature therefore have equal ids, and a plan made for one group also runs the other groups of its signature.
struct Binding {
  std::int64_t uid = 0;
  ValueId value = kNoValue;
};
/// Returns the values of `group` that are in memory, by id.
std::vector<Binding> bindings(const Group& group);

class OperationGraph {
 public:
  /// `library` must outlive this object. The graph is for the device of `handle`. If `handle` is null, a Target
  /// describes the device. Errors: backend, with cuDNN's reason, if cuDNN refuses the graph; unsupported for an
  /// operation for which cuDNN has no descriptor.
  OperationGraph(const Library& library, const Program& program, const Group& group, cudnnHandle_t handle = nullptr);

  [[nodiscard]] const Descriptor& get() const noexcept { return graph_; }

 private:
  std::vector<Descriptor> parts_;  // tensors and attributes that the operations refer to
  std::vector<Descriptor> operations_;
  Descriptor graph_;
};

}  // namespace hvd::models::cudnn
