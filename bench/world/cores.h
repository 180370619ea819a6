// Computes the number of cores that each rank has for its compute, from the processors of all ranks: affinity masks,
// the cgroups' quotas of processor time, Slurm's grants, and OpenMP's limits. Pure, except rank_cores().
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/store/process_start.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

struct RankCores {
  std::vector<int> cpus = {};   ///< processors on which the rank's threads may run, ascending
  std::vector<int> cores = {};  ///< [i]: physical core of cpus[i], as of cores_of(); empty: each has its own
  double quota = 0;             ///< processors' worth of time that the rank's cgroup may use; 0: no limit
  std::string group = {};       ///< which cgroup that is; ranks of a host with equal texts share one quota
  double granted = 0;           ///< processors that Slurm granted the rank, bound to them or not; 0: not told
  int thread_limit = 0;         ///< most threads that OpenMP gives the rank; 0: no limit
  int launcher_cpus = 0;        ///< number of processors that the parent process may use; 0: unknown
};
/// Returns the processors that srun granted each task (SLURM_CPUS_PER_TASK); 0 if Slurm did not start this process.
/// salloc and sbatch set the variable too. Under their mpirun, or by hand, it speaks of tasks that do not exist.
int task_processors(const ProcessStart& start);
/// Returns what the scheduler, a launcher's binding, the cgroup and the environment allow the calling thread, without
/// `cores`. `granted`: the rank's part of task_processors().
RankCores rank_cores(double granted = 0);
std::string to_text(const RankCores& cores);
/// Parses a message of to_text(). Errors: none; unreadable lines are left out.
RankCores parse_rank_cores(std::string_view text);
/// Parses the messages of all ranks, as a gather returns them.
std::vector<RankCores> parse_all_cores(std::span<const comm::Bytes> messages);

/// The ranks of one host, in the order of ranks.
struct HostRanks {
  std::string name;
  std::vector<int> ranks;
};
/// Groups the ranks by `hosts` [rank], in the order of each host's first rank.
std::vector<HostRanks> by_host(std::span<const std::string> hosts);

struct CoreShare {
  int threads = 1;              ///< compute threads of every rank: the smallest share over ranks, at least 1
  double processors = 0;        ///< the smallest share over ranks, in processors
  int smallest = 0;             ///< first rank that has the smallest share
  int thread_limit = 0;         ///< the smallest RankCores::thread_limit; 0: no limit
  bool spare_core = false;      ///< every host has more cores than compute threads, so a core is left for the engines
  int ranks_at_once = 1;        ///< ranks per host that can run at once, one core per thread; minimum over hosts, >= 1
  bool oversubscribed = false;  ///< on some host the ranks have more threads than cores
};

/// Rank r has `ranks[r]` on host hosts[r]. A core that k ranks of a host may use counts 1/k for each of these ranks, so
/// ranks that are bound to separate cores and ranks that share all cores get the same shares; likewise a quota.
/// `threads` > 0 is the user's choice and is returned unchanged.
CoreShare share_cores(std::span<const RankCores> ranks, std::span<const std::string> hosts, int threads);

/// Returns a caution of one line if a rank of several on GPUs has too few processors for its threads; "" if not.
std::string few_cpus(const CoreShare& share, std::span<const std::string> hosts);
/// Returns a caution of one line if the ranks of a host, each with `threads` threads, take turns on processors or use
/// up a quota; "" if not.
std::string crowding(std::span<const RankCores> ranks, std::span<const std::string> hosts, int threads);
/// Returns a caution of one line if the compute threads of a host's ranks are more than the physical cores that they
/// run on, though each has a processor (hardware thread); "" if not, or if crowding() has a caution.
std::string shared_cores(std::span<const RankCores> ranks, std::span<const std::string> hosts, int threads);
/// Returns a note of one line if Slurm granted a rank less than its share of the processors of its mask; "" if not.
std::string small_grant(std::span<const RankCores> ranks, std::span<const std::string> hosts);
/// Returns a note of one line if a launcher bound the only rank of a host to a part of the processors that the launcher
/// itself may use; "" if not.
std::string narrow_binding(std::span<const RankCores> ranks, std::span<const std::string> hosts);

}  // namespace hvd::bench
