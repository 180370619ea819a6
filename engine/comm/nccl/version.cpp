#include <fmt/format.h>

#include "engine/comm/nccl/api.h"

namespace hvd::comm::nccl {

std::string Version::text() const { return fmt::format("{}.{}.{}", major, minor, patch); }

Version version_from_number(int number) noexcept {
  const int unit = number >= 20000 ? 10000 : 1000;
  return {.major = number / unit, .minor = number % unit / 100, .patch = number % 100};
}

}  // namespace hvd::comm::nccl
