#include "engine/base/assert.h"

#include <stdexcept>
#include <string>

namespace hvd {

void assertion_failed(const char* expression, const char* file, int line) {
  throw std::logic_error(std::string("internal error: assertion '") + expression + "' failed at " + file + ":" +
                         std::to_string(line) + "; please report it");
}

}  // namespace hvd
