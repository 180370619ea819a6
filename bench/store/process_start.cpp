#include "bench/store/process_start.h"

namespace hvd::bench {

std::string_view value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string_view() : std::string_view(found->second);
}

std::string how_to_launch(std::string_view evidence, int tasks) {
  const std::string n = std::to_string(tasks);
  if (evidence.starts_with("SLURM"))
    return "srun --mpi=pmix -n " + n + " hvd_bench ... or mpirun -n " + n + " hvd_bench ...";
  if (evidence.starts_with("LSB") || evidence.starts_with("JSM"))
    return "jsrun -n " + n + " hvd_bench ... or mpirun -n " + n + " hvd_bench ...";
  return "mpirun -n " + n + " hvd_bench ...";
}

}  // namespace hvd::bench
