// Allocates and scales the tensors of tickets, in host memory or on a GPU. The engine's thread owns a TensorMemory.
#pragma once

#include <cstddef>
#include <string_view>

#include "engine/base/types.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/engine.h"

namespace hvd::comm {
class DevicePlane;
}

namespace hvd {

class TensorMemory {
 public:
  /// Borrows `plane`. Memory is on the host or on the GPU, as `plane` needs it.
  explicit TensorMemory(comm::DataPlane& plane);
  /// Returns `bytes` of new memory, which `output` owns; null for 0 bytes. `what` names the memory in errors.
  /// Errors: out_of_memory.
  std::byte* make(Output& output, std::size_t bytes, std::string_view what) const;
  /// Multiplies `count` elements of a floating-point type by `factor`, with the same bits on host and GPU. On a GPU the
  /// work is enqueued, in order with the plane's operations. Does nothing if `factor` is 1.
  void scale(std::byte* data, std::size_t count, DataType dtype, double factor) const;
  [[nodiscard]] bool on_device() const noexcept { return device_ != nullptr; }

 private:
  comm::DevicePlane* device_;  // null if the memory is the host's
};

}  // namespace hvd
