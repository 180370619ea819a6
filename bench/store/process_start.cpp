#include "bench/store/process_start.h"

#include <fmt/format.h>

namespace hvd::bench {

std::string_view value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string_view() : std::string_view(found->second);
}

std::string how_to_launch(std::string_view evidence, int tasks) {
  if (evidence.starts_with("SLURM"))
    return fmt::format("srun --mpi=pmix -n {0} hvd_bench ... or mpirun -n {0} hvd_bench ...", tasks);
  if (evidence.starts_with("LSB") || evidence.starts_with("JSM"))
    return fmt::format("jsrun -n {0} hvd_bench ... or mpirun -n {0} hvd_bench ...", tasks);
  return fmt::format("mpirun -n {} hvd_bench ...", tasks);
}

}  // namespace hvd::bench
