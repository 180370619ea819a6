// How this process was started: by mpirun, srun, jsrun, or by hand inside an allocation that holds several
// tasks. Known before MPI is initialised, so that N processes never become N separate worlds unnoticed
// and that a usage error is said once and not N times. Pure functions of an Environment.
#pragma once

#include <chrono>
#include <string>

#include "bench/cli/environment.h"
#include "bench/options.h"
#include "engine/base/error.h"

namespace hvd::bench {

enum class Launcher : std::uint8_t {
  kNone,    ///< started by hand
  kMpirun,  ///< Open MPI's mpirun (also below LSF's jsrun when it is Open MPI's)
  kSlurm,   ///< a job step of srun
  kJsm,     ///< jsrun
  kPmi,     ///< some other launcher that speaks PMI (Hydra's mpiexec, Flux)
};

struct Launch {
  Launcher launcher = Launcher::kNone;
  int size = 1;                      ///< processes that the launcher started together
  int rank = 0;                      ///< this one among them
  int local_rank = 0;                ///< among those of this host
  int nodes = 1;                     ///< hosts, where the launcher tells; else 1
  std::string evidence;              ///< what says so: "OMPI_COMM_WORLD_SIZE=4"; empty when started by hand
  std::string rank_evidence;         ///< "OMPI_COMM_WORLD_RANK=0"
  bool wired = false;                ///< the launcher offers what Open MPI needs to join one world (PMIx or its own)
  bool first_of_its_command = true;  ///< lowest rank of those with the same command line (mpirun a : b)
  int allocation_tasks = 1;          ///< tasks of the surrounding allocation, when started by hand in one
  std::string allocation_evidence;   ///< "SLURM_NTASKS=4"
  bool prrte = false;                ///< mpirun of Open MPI 5, whose processes PRRTE starts
};

Launch detect_launch(const Environment& environment);

/// Decides `options.comm` where it is kAuto (several processes: MPI; --ranks: loopback; else left alone) and
/// refuses what would silently run as separate worlds.
/// Errors: invalid_argument where the launcher's variables contradict one another, or that says how to launch. One
/// process on purpose inside an allocation of several tasks is asked for with `--comm loopback` (or --ranks), or by
/// launching one (`srun -n 1`, `mpirun -n 1`).
void check_launch(const Launch& launch, Options& options, bool mpi_in_build);

/// Once MPI has told the world's size.
/// Errors: invalid_argument when the launcher started several processes and each is a world of its own.
void check_world(const Launch& launch, int world_size, const Options& options);

/// What this process has against the rank that MPI has given it, empty: nothing. The launcher's says who prints and
/// stores, MPI's who has the results.
std::string rank_objection(const Launch& launch, int world_rank);

/// Who says that the run failed, so that 512 ranks do not say it 512 times.
enum class Voice : std::uint8_t {
  kNow,
  kUnlessStopped,  ///< wait a moment: the launcher's SIGTERM means that another rank has said it
  kSilent,
};
enum class Stage : std::uint8_t {
  kUsage,    ///< reading the command line: equal for all ranks of one command
  kHost,     ///< looking at this host, before the ranks have met
  kSession,  ///< running: a peer's failure is known to rank 0 as well
};
Voice voice(const Launch& launch, const Error& error, Stage stage);

/// How long after a signal the run may take to end in order before it is ended anyhow. mpirun of Open MPI 4 kills 1 s
/// after SIGTERM (odls_base_sigkill_timeout), that of Open MPI 5 after 0.25 s (seen with PRRTE 3.0.8, which has no
/// variable for it), and the store needs some of that; Slurm kills after 30 s (KillWait), LSF after
/// 10 s. An announcement (SIGUSR1) is no threat.
std::chrono::milliseconds grace(const Launch& launch, int signal_number);

}  // namespace hvd::bench
