#include "engine/base/scale.h"

namespace hvd {

void scale(std::byte* data, std::size_t count, DataType dtype, double factor) {
  with_floats(data, dtype, [&](auto* values) {
    for (std::size_t i = 0; i < count; ++i) values[i] = scaled(values[i], factor);
  });
}

}  // namespace hvd
