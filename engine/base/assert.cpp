#include "engine/base/assert.h"

#include <fmt/format.h>

#include <stdexcept>

namespace hvd {

void assertion_failed(const char* expression, const char* file, int line) {
  throw std::logic_error(
      fmt::format("internal error: assertion '{}' failed at {}:{}; please report it", expression, file, line));
}

}  // namespace hvd
