#include "bench/cli/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "bench/cli/signal_watch.h"
#include "bench/world/ranks.h"

namespace hvd::bench {
namespace {

constexpr std::string_view kInteractiveStep = "4294967290";  // SLURM_INTERACTIVE_STEP: the shell that salloc starts

int number(const Environment& environment, std::string_view name, int fallback) {
  const std::string_view text = value_of(environment, name);
  int parsed = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  return problem == std::errc() && end == text.data() + text.size() && parsed >= 0 ? parsed : fallback;
}

bool has(const Environment& environment, std::string_view name) { return !value_of(environment, name).empty(); }

std::string evidence(const Environment& environment, std::string_view name) {
  return fmt::format("{}={}", name, value_of(environment, name));
}

/// Returns true if `rank` is the first process of its command. `mpirun a : b` numbers the processes of command a first,
/// then those of command b. OMPI_APP_CTX_NUM_PROCS has the number of processes of each command: "3 5".
bool first_of_application(const Environment& environment, int rank) {
  std::istringstream counts{std::string(value_of(environment, "OMPI_APP_CTX_NUM_PROCS"))};
  int first = 0;
  for (int count = 0; counts >> count; first += count) {
    if (first == rank) return true;
  }
  return rank == 0;
}

struct LauncherVariables {
  Launcher launcher;
  std::string_view size, rank, local_rank;
};

void take(const Environment& environment, const LauncherVariables& variables, Launch& launch) {
  launch.launcher = variables.launcher;
  launch.size = number(environment, variables.size, 1);
  launch.rank = number(environment, variables.rank, 0);
  launch.local_rank = number(environment, variables.local_rank, 0);
  launch.evidence = evidence(environment, variables.size);
  launch.rank_evidence = evidence(environment, variables.rank);
  launch.first_of_its_command = launch.rank == 0;
}

/// Returns true if engine/comm's error text says that rank 0 is lost, so that rank 0 cannot report the error itself:
/// "rank 3 (host b) waited 5.0 s in gather 2 for rank 0 (host a), ..." or "rank 0 (host a) is lost: ...".
bool says_rank_0_is_lost(std::string_view text) {
  if (text.starts_with("rank 0 (")) return text.substr(std::min(text.find(')'), text.size())).starts_with(") is lost");
  return text.find(" for rank 0 (") != std::string_view::npos;
}

}  // namespace

ProcessStart process_start(Environment environment) {
  Launch launch = detect_launch(environment);
  return {std::move(environment), std::move(launch)};
}

Launch detect_launch(const Environment& environment) {
  Launch launch;
  // Look for the innermost launcher first, because mpirun may start fewer processes than its allocation has tasks.
  if (has(environment, "OMPI_COMM_WORLD_SIZE")) {
    take(environment, {Launcher::kMpirun, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
         launch);
    launch.nodes = number(environment, "OMPI_MCA_orte_num_nodes", 1);
    launch.wired = true;
    launch.first_of_its_command = first_of_application(environment, launch.rank);
    launch.prrte = has(environment, "PRTE_LAUNCHED");
  } else if (has(environment, "JSM_NAMESPACE_SIZE")) {
    take(environment, {Launcher::kJsm, "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"}, launch);
    launch.wired = true;
  } else if (has(environment, "SLURM_STEP_NUM_TASKS") && has(environment, "SLURM_STEP_ID") &&
             value_of(environment, "SLURM_STEP_ID") != kInteractiveStep) {
    take(environment, {Launcher::kSlurm, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"}, launch);
    launch.nodes = number(environment, "SLURM_STEP_NUM_NODES", 1);
    launch.wired = has(environment, "PMIX_RANK") || has(environment, "PMI_RANK");
  } else if (has(environment, "PMI_SIZE")) {
    take(environment, {Launcher::kPmi, "PMI_SIZE", "PMI_RANK", "PMI_LOCAL_RANK"}, launch);
    launch.wired = true;  // check_world() finds out later whether this MPI understands the launcher's PMI
  } else {
    // LSF has no variable for tasks: LSB_DJOB_NUMPROC counts slots, which may be for the threads of one process.
    for (const std::string_view name : {"SLURM_NTASKS", "SLURM_NPROCS"}) {
      if (!has(environment, name)) continue;
      launch.allocation_tasks = number(environment, name, 1);
      launch.allocation_evidence = evidence(environment, name);
      break;
    }
  }
  return launch;
}

comm::MpiChoice mpi_choice(const ProcessStart& start) {
  comm::MpiChoice choice;
  choice.wanted = value_of(start.environment, kMpiVariable);
  choice.launched = start.launch.size > 1;
  // Slurm, jsrun and others start any MPI. hydra, the mpirun of MPICH and of Intel MPI, sets PMI_SIZE.
  if (start.launch.launcher == Launcher::kMpirun) choice.launcher = comm::MpiAbi::kOpenMpi;
  if (start.launch.launcher == Launcher::kPmi) choice.launcher = comm::MpiAbi::kMpich;
  choice.evidence = start.launch.evidence;
  return choice;
}

void check_launch(const Launch& launch, WorldOptions& options, bool mpi_in_build) {
  if (launch.rank >= launch.size) {
    throw Error(Errc::kInvalidArgument,
                launch.evidence + " contradicts " + launch.rank_evidence +
                    ": ranks count from 0; unset what the launcher (mpirun, srun, jsrun) did not set");
  }
  if (launch.size > 1) {
    if (in_process(options)) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{0}: {1} processes were started together, but --comm loopback and --ranks make each of "
                              "them a separate world; leave them out to join the {1} processes through MPI, or start "
                              "one process",
                              launch.evidence, launch.size));
    }
    if (!mpi_in_build) {
      throw Error(Errc::kUnsupported,
                  fmt::format("{0}: {1} processes were started together, but this build has no MPI to join them; build "
                              "with HVD_WITH_MPI=ON (Debian: apt-get install libopenmpi-dev), or start one process "
                              "with --ranks {1}",
                              launch.evidence, launch.size));
    }
    if (!launch.wired) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{}: {} processes were started without PMIx, so that each would be a separate world of "
                              "one; launch with: {}",
                              launch.evidence, launch.size, how_to_launch(launch.evidence, launch.size)));
    }
    if (options.comm == CommBackend::kAuto) options.comm = CommBackend::kMpi;
    return;
  }
  if (launch.launcher == Launcher::kNone && launch.allocation_tasks > 1 && !in_process(options)) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("{}: the allocation holds {} tasks, but this is a world of one process; launch with: {} "
                            "(one process on purpose: --comm loopback)",
                            launch.allocation_evidence, launch.allocation_tasks,
                            how_to_launch(launch.allocation_evidence, launch.allocation_tasks)));
  }
  if (options.comm == CommBackend::kAuto && options.ranks > 0) options.comm = CommBackend::kLoopback;
}

ErrorReporting error_reporting(const Launch& launch, const Error& error, ErrorStage stage) {
  if (launch.size <= 1 || launch.rank >= launch.size) return ErrorReporting::kNow;
  if (launch.rank == 0) {
    // If rank 0 was stopped and then continued, the error may say that rank 0 is lost. Rank 1 reports that error.
    return error.code() == Errc::kPeerLost && says_rank_0_is_lost(error.what()) ? ErrorReporting::kSilent
                                                                                : ErrorReporting::kNow;
  }
  const bool usage =
      stage == ErrorStage::kUsage || (stage == ErrorStage::kHost && error.code() == Errc::kInvalidArgument);
  if (usage) return launch.first_of_its_command ? ErrorReporting::kNow : ErrorReporting::kSilent;
  switch (error.code()) {
    case Errc::kPeerLost:
    case Errc::kTimeout:
      // Every surviving rank has the same error. Rank 0 reports the error, or rank 1 if rank 0 itself is lost.
      return launch.rank == 1 && says_rank_0_is_lost(error.what()) ? ErrorReporting::kUnlessStopped
                                                                   : ErrorReporting::kSilent;
    case Errc::kMismatch:
    case Errc::kInterrupted:
    case Errc::kCheckFailed:
    case Errc::kInconclusive:
    case Errc::kNotComparable: return ErrorReporting::kSilent;  // all ranks agreed on this error
    case Errc::kInvalidArgument:
    case Errc::kUnsupported:
    case Errc::kIo:
    case Errc::kOutOfMemory:
    case Errc::kBackend: break;
  }
  // The fault belongs to this rank, to this host, or to all ranks. mpirun ends the other ranks when the first rank
  // leaves. srun may let the other ranks run, so one rank per host reports the error, and rank 0 learns the reason from
  // that rank.
  return launch.launcher == Launcher::kMpirun || launch.local_rank == 0 ? ErrorReporting::kUnlessStopped
                                                                        : ErrorReporting::kSilent;
}

std::chrono::milliseconds grace(const Launch& launch, int signal_number) {
  using std::chrono::milliseconds;
  if (is_announcement(signal_number)) return milliseconds(60000);
  if (launch.launcher != Launcher::kMpirun) return milliseconds(8000);
  return milliseconds(launch.prrte ? 50 : 400);
}

}  // namespace hvd::bench
