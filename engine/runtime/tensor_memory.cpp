#include "engine/runtime/tensor_memory.h"

#include "engine/base/scale.h"
#include "engine/comm/device_communicator.h"

namespace hvd {

TensorMemory::TensorMemory(comm::DataPlane& plane) : device_(dynamic_cast<comm::DevicePlane*>(&plane)) {}

std::byte* TensorMemory::make(Output& output, std::size_t bytes, std::string_view what) const {
  if (bytes == 0) return nullptr;
  if (device_ == nullptr) {
    output.bytes.resize(bytes);
    return output.bytes.data();
  }
  output.device = device_->runtime().allocate(bytes, what);
  return output.device->bytes.data();
}

void TensorMemory::scale(std::byte* data, std::size_t count, DataType dtype, double factor) const {
  if (factor == 1 || count == 0) return;
  if (device_ == nullptr) {
    hvd::scale(data, count, dtype, factor);
  } else {
    device_->runtime().scale(data, count, dtype, factor, device_->stream());
  }
}

}  // namespace hvd
