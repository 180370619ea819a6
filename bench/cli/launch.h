// Finds out how this process was started: by mpirun, srun, jsrun, or by hand inside an allocation of several tasks. The
// program knows this before it initialises MPI, so N processes never become N separate worlds unnoticed, and a usage
// error is printed once instead of N times. Pure functions of an Environment.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "bench/store/process_start.h"
#include "bench/world/ranks.h"
#include "engine/base/error.h"
#include "engine/comm/mpi_library.h"

namespace hvd::bench {

/// Returns the environment, and the facts about the launch that detect_launch() finds in it.
ProcessStart process_start(Environment environment);
Launch detect_launch(const Environment& environment);

/// The variable that names the MPI to load: openmpi, mpich, or the path of a library. Unlike other text from outside,
/// it may name a path, as LD_LIBRARY_PATH does. No file that a stranger wrote can set it.
inline constexpr std::string_view kMpiVariable = "HVD_MPI";
/// Returns what the environment says about the MPI to load. Pure.
comm::MpiChoice mpi_choice(const ProcessStart& start);

/// If `options.comm` is kAuto, sets it to MPI for several processes, and to loopback for one process with --ranks. For
/// one process without --ranks it stays kAuto. Refuses launches that would silently run as separate worlds.
/// Errors: invalid_argument if the launcher's variables contradict one another, or if the launch is refused (the text
/// says how to launch); unsupported if several processes were started and this build has no MPI.
/// To run one process on purpose inside an allocation of several tasks, use `--comm loopback` or --ranks, or launch one
/// process (`srun -n 1`, `mpirun -n 1`).
void check_launch(const Launch& launch, WorldOptions& options, bool mpi_in_build);

/// Says whether this rank reports that the run failed, so that not all of 512 ranks report it.
enum class ErrorReporting : std::uint8_t {
  kNow,
  kUnlessStopped,  ///< wait, then report unless SIGTERM came: the launcher sends it after another rank's report
  kSilent,
};
enum class ErrorStage : std::uint8_t {
  kUsage,    ///< reading the command line, which all ranks of one command share
  kHost,     ///< examining this host, before the ranks have joined
  kSession,  ///< the session runs, and rank 0 learns of every rank's failure
};
ErrorReporting error_reporting(const Launch& launch, const Error& error, ErrorStage stage);

/// Returns how long the run may take to end in order after a signal. When this time is over, the run is forced to end.
/// mpirun of Open MPI 4 kills the processes 1 s after SIGTERM (odls_base_sigkill_timeout), mpirun of Open MPI 5 after
/// 0.25 s (seen with PRRTE 3.0.8, which has no variable for this time). Slurm kills them after 30 s (KillWait), LSF
/// after 10 s. The returned time is shorter than these times, because the store is written afterwards. No launcher
/// kills processes soon after an announcement such as SIGUSR1.
std::chrono::milliseconds grace(const Launch& launch, int signal_number);

}  // namespace hvd::bench
