#include "models/dropout.h"

#include "engine/base/hash.h"
#include "engine/base/philox.h"

namespace hvd::models {

void dropout_mask(const DropoutAttr& attr, const DropoutPoint& point, std::span<std::uint8_t> keep) {
  const Philox generator(point.seed, Hasher().text("dropout").number(attr.stream).number(point.step).value());
  // The comparison below is on integers, so that the mask does not depend on floating-point rounding.
  const auto dropped_below = static_cast<std::uint64_t>(attr.rate * 0x1.0p32);
  std::uint64_t index = point.first_sample * point.features;
  auto words = generator.block(index / 4);
  for (std::uint8_t& flag : keep) {
    if (index % 4 == 0) words = generator.block(index / 4);
    flag = words[index % 4] >= dropped_below ? 1 : 0;
    ++index;
  }
}

double dropout_scale(const DropoutAttr& attr) noexcept { return 1.0 / (1.0 - attr.rate); }

}  // namespace hvd::models
