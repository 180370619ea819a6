// The environment of this process, and the facts about the launch that the environment holds. main() reads both once
// (bench/cli/launch.h) and hands them down. No other code of bench reads the environment, so
// that a test can pass its own environment. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace hvd::bench {

using Environment = std::map<std::string, std::string, std::less<>>;

/// Returns the value of `name`, or an empty string.
std::string_view value_of(const Environment& environment, std::string_view name);

enum class Launcher : std::uint8_t {
  kNone,    ///< started by hand
  kMpirun,  ///< Open MPI's mpirun (also jsrun, if it starts processes of Open MPI)
  kSlurm,   ///< a job step of srun
  kJsm,     ///< jsrun
  kPmi,     ///< some other launcher that speaks PMI (Hydra's mpiexec, Flux)
};

struct Launch {
  Launcher launcher = Launcher::kNone;
  int size = 1;                      ///< processes that the launcher started together
  int rank = 0;                      ///< this process's number among these processes
  int local_rank = 0;                ///< this process's number among the processes of its host
  int nodes = 1;                     ///< number of hosts if the launcher tells it; else 1
  std::string evidence;              ///< variable that shows the launcher: "OMPI_COMM_WORLD_SIZE=4"; empty: by hand
  std::string rank_evidence;         ///< variable that shows the rank: "OMPI_COMM_WORLD_RANK=0"
  bool wired = false;                ///< the launcher offers PMIx or its own protocol, by which Open MPI joins a world
  bool first_of_its_command = true;  ///< this is the lowest rank with this command line (mpirun a : b)
  int allocation_tasks = 1;          ///< tasks of the allocation in which the process was started by hand
  std::string allocation_evidence;   ///< variable that shows the allocation: "SLURM_NTASKS=4"
  bool prrte = false;                ///< started by mpirun of Open MPI 5, which uses PRRTE
};

struct ProcessStart {
  Environment environment;
  Launch launch;
};

/// Returns the commands that start `tasks` processes as one world, for advice: "mpirun -n 4 hvd_bench ...".
/// `evidence`: Launch::evidence or Launch::allocation_evidence.
std::string how_to_launch(std::string_view evidence, int tasks);

}  // namespace hvd::bench
