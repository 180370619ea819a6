#include "engine/core/request.h"

#include <limits>

#include "engine/base/error.h"

namespace hvd::core {

std::string to_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

std::size_t Request::count() const {
  // 8 bytes is the largest element, so that bytes() cannot overflow either.
  constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max() / 8;
  std::size_t product = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    const auto factor = static_cast<std::size_t>(extent);
    if (extent < 0 || (factor != 0 && product > kLargest / factor)) {
      throw Error(Errc::kInvalidArgument,
                  "tensor '" + name + "': shape " + to_text(shape) +
                      (extent < 0 ? " has a negative extent" : " has more elements than 64 bits can count"));
    }
    if (factor == 0) {
      empty = true;
    } else {
      product *= factor;
    }
  }
  return empty ? 0 : product;
}

}  // namespace hvd::core
