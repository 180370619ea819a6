#include "bench/world/library_search.h"

namespace hvd::bench {

gpu::LibrarySearch library_search(const Environment& environment) {
  return gpu::library_search([&](const char* variable) { return value_of(environment, variable); });
}

}  // namespace hvd::bench
