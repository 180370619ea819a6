// A group of operations as a graph of cuDNN's backend API.
//
// Layout: every tensor of rank 4 is NHWC in memory and NCHW in cuDNN's dimensions; slices keep the strides of what
// they are slices of; vectors are {1, c, 1, 1}. Products and pointwise operations compute in fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "models/cudnn/descriptor.h"
#include "models/cudnn/program.h"

namespace hvd::models::cudnn {

/// A tensor of the graph, by the id that cuDNN knows it by. Ids count values in order of appearance, so groups of equal
/// signature have equal ids, and a plan made for one runs the other.
struct Binding {
  std::int64_t uid = 0;
  ValueId value = kNoValue;
};
/// Returns the values of `group` that are in memory, by id.
std::vector<Binding> bindings(const Group& group);

class OperationGraph {
 public:
  /// `library` must outlive it. For the device of `handle`; null: for a device that is described elsewhere. Errors:
  /// backend, with cuDNN's reason, where it refuses the graph; unsupported for an operation that cuDNN has no
  /// descriptor for.
  OperationGraph(const Library& library, const Program& program, const Group& group, cudnnHandle_t handle = nullptr);

  [[nodiscard]] const Descriptor& get() const noexcept { return graph_; }

 private:
  std::vector<Descriptor> parts_;  // tensors, attributes: what the operations refer to
  std::vector<Descriptor> operations_;
  Descriptor graph_;
};

}  // namespace hvd::models::cudnn
