// Memory of the tensors of tickets, on the host or on a GPU: makes results there, and applies factors there. The
// engine's thread owns it.
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
  /// Borrows the plane, whose memory it is.
  explicit TensorMemory(comm::DataPlane& plane);
  /// Returns `bytes` of new memory, which `output` owns; null for none. `what` is for the message. Errors:
  /// out_of_memory.
  std::byte* make(Output& output, std::size_t bytes, std::string_view what) const;
  /// Multiplies `count` elements of a floating-point type by `factor`, with the same bits everywhere. On a device it is
  /// enqueued, in the order of the plane's operations. Nothing for a factor of 1.
  void scale(std::byte* data, std::size_t count, DataType dtype, double factor) const;
  [[nodiscard]] bool on_device() const noexcept { return device_ != nullptr; }

 private:
  comm::DevicePlane* device_;  // null: on the host
};

}  // namespace hvd
