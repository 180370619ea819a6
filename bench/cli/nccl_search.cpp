#include "bench/cli/nccl_search.h"

namespace hvd::bench {

comm::nccl::Search nccl_search(const Environment& environment) {
  return gpu::library_search([&](const char* variable) { return value_of(environment, variable); });
}

}  // namespace hvd::bench
