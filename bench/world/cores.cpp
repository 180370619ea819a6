#include "bench/world/cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "bench/store/host_facts.h"
#include "engine/base/assert.h"
#include "models/thread_team.h"

namespace hvd::bench {
namespace {

constexpr double kRounding = 1e-9;  // of sums of shares such as 1/3

/// Returns for each processor the number of these ranks that may use it.
std::map<int, int> users_of(std::span<const RankCores> all, const std::vector<int>& ranks) {
  std::map<int, int> users;
  for (const int r : ranks) {
    for (const int cpu : all[static_cast<std::size_t>(r)].cpus) ++users[cpu];
  }
  return users;
}

/// Returns the rank's share of the processors of its mask, without regard to its grant and its quota.
double share_of_mask(const RankCores& rank, const std::map<int, int>& users) {
  return std::accumulate(rank.cpus.begin(), rank.cpus.end(), 0.0,
                         [&](double sum, int cpu) { return sum + 1.0 / users.at(cpu); });
}

/// Returns the same, but at most what Slurm granted the rank.
double share_of(const RankCores& rank, const std::map<int, int>& users) {
  const double share = share_of_mask(rank, users);
  return rank.granted > 0 ? std::min(share, rank.granted) : share;
}

/// Returns the physical cores on which the rank may run.
std::set<int> physical(const RankCores& rank) {
  const std::vector<int>& cores = rank.cores.empty() ? rank.cpus : rank.cores;
  return {cores.begin(), cores.end()};
}

/// Processors' worth of time that these ranks may use together: the processors of their masks, cut by the quotas.
double processors_of(std::span<const RankCores> all, const std::vector<int>& ranks) {
  const std::map<int, int> users = users_of(all, ranks);
  std::map<std::string, std::pair<double, double>> limited;  // [cgroup]: its quota, and the processors of its ranks
  double processors = 0;
  for (const int r : ranks) {
    const RankCores& rank = all[static_cast<std::size_t>(r)];
    if (rank.quota <= 0) {
      processors += share_of(rank, users);
    } else {
      auto& [quota, theirs] = limited[rank.group];
      quota = rank.quota;
      theirs += share_of(rank, users);
    }
  }
  for (const auto& [group, numbers] : limited) processors += std::min(numbers.first, numbers.second);
  return processors;
}

/// Returns the number of `ranks` that share the quota of `rank`.
std::size_t sharers(std::span<const RankCores> all, const std::vector<int>& ranks, const RankCores& rank) {
  return static_cast<std::size_t>(std::count_if(ranks.begin(), ranks.end(), [&](int r) {
    const RankCores& other = all[static_cast<std::size_t>(r)];
    return other.quota > 0 && other.group == rank.group;
  }));
}

std::string ranks_with(std::size_t ranks, int threads) {
  return fmt::format("{} rank{} with {} compute thread{}{}", ranks, ranks == 1 ? "" : "s", threads,
                     threads == 1 ? "" : "s", ranks == 1 ? "" : " each");
}

}  // namespace

int task_processors(const ProcessStart& start) {
  if (start.launch.launcher != Launcher::kSlurm) return 0;
  const std::string_view text = value_of(start.environment, "SLURM_CPUS_PER_TASK");
  int processors = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), processors);
  return problem == std::errc() && end == text.data() + text.size() ? std::max(0, processors) : 0;
}

RankCores rank_cores(double granted) {
  RankCores cores{.granted = granted};
  cores.cpus = models::bound_processors();
  if (cores.cpus.empty()) cores.cpus = affinity();
  if (cores.cpus.empty()) {  // the host has more processors than a cpu_set_t holds
    cores.cpus.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cores.cpus.begin(), cores.cpus.end(), 0);
  }
  if (const CpuQuota limit = cpu_quota(); limit.processors > 0) {
    cores.quota = limit.processors;
    cores.group = limit.group;
  }
  if (const int limit = models::thread_limit(); limit < std::numeric_limits<int>::max()) cores.thread_limit = limit;
  cpu_set_t parent;
  CPU_ZERO(&parent);
  if (sched_getaffinity(getppid(), sizeof parent, &parent) == 0) cores.launcher_cpus = CPU_COUNT(&parent);
  return cores;
}

std::string to_text(const RankCores& cores) {
  return fmt::format("cpus {}\ncores {}\nquota {}\ngroup {}\ngranted {}\nthread_limit {}\nlauncher_cpus {}\n",
                     cpu_list(cores.cpus), cpu_list(cores.cores), cores.quota, cores.group, cores.granted,
                     cores.thread_limit, cores.launcher_cpus);
}

RankCores parse_rank_cores(std::string_view text) {
  RankCores cores;
  const auto number = [](std::string_view digits, auto& out) {
    std::from_chars(digits.data(), digits.data() + digits.size(), out);
  };
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view name = line.substr(0, line.find(' '));
    const std::string_view value = line.substr(std::min(line.size(), name.size() + 1));
    if (name == "cpus") cores.cpus = parse_cpu_list(value);
    if (name == "cores") cores.cores = parse_cpu_list(value);
    if (name == "granted") number(value, cores.granted);
    if (name == "quota") number(value, cores.quota);
    if (name == "group") cores.group = value;
    if (name == "thread_limit") number(value, cores.thread_limit);
    if (name == "launcher_cpus") number(value, cores.launcher_cpus);
  }
  return cores;
}

std::vector<HostRanks> by_host(std::span<const std::string> hosts) {
  std::vector<HostRanks> out;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    auto host = std::find_if(out.begin(), out.end(), [&](const HostRanks& other) { return other.name == hosts[r]; });
    if (host == out.end()) host = out.insert(out.end(), {hosts[r], {}});
    host->ranks.push_back(static_cast<int>(r));
  }
  return out;
}

std::vector<RankCores> parse_all_cores(std::span<const comm::Bytes> messages) {
  std::vector<RankCores> all;
  for (const comm::Bytes& message : messages) all.push_back(parse_rank_cores(comm::text_of(message)));
  return all;
}

CoreShare share_cores(std::span<const RankCores> ranks, std::span<const std::string> hosts, int threads) {
  HVD_ASSERT(!ranks.empty() && ranks.size() == hosts.size());
  CoreShare out;
  out.processors = HUGE_VAL;
  const std::vector<HostRanks> all_hosts = by_host(hosts);
  for (const HostRanks& host : all_hosts) {
    const std::map<int, int> users = users_of(ranks, host.ranks);
    for (const int r : host.ranks) {
      const RankCores& rank = ranks[static_cast<std::size_t>(r)];
      double share = share_of(rank, users);
      if (rank.quota > 0) share = std::min(share, rank.quota / static_cast<double>(sharers(ranks, host.ranks, rank)));
      if (share < out.processors) {
        out.processors = share;
        out.smallest = r;
      }
      if (rank.thread_limit > 0 && (out.thread_limit == 0 || rank.thread_limit < out.thread_limit))
        out.thread_limit = rank.thread_limit;
    }
  }
  out.threads = std::max(1, static_cast<int>(std::floor(out.processors + kRounding)));
  if (out.thread_limit > 0) out.threads = std::min(out.threads, out.thread_limit);
  if (threads > 0) out.threads = threads;
  out.spare_core = true;
  out.ranks_at_once = std::numeric_limits<int>::max();
  for (const HostRanks& host : all_hosts) {
    const double available = processors_of(ranks, host.ranks) + kRounding;
    const double wanted = static_cast<double>(host.ranks.size()) * out.threads;
    out.spare_core = out.spare_core && available >= wanted + 1;
    out.oversubscribed = out.oversubscribed || available < wanted;
    out.ranks_at_once = std::min(out.ranks_at_once, std::max(1, static_cast<int>(available / out.threads)));
  }
  return out;
}

std::string few_cpus(const CoreShare& share, std::span<const std::string> hosts) {
  constexpr double kThreads = 3;  // the training thread, the engine's, and NCCL's, which are busy with a network
  if (hosts.size() < 2 || share.processors + kRounding >= kThreads) return {};
  return fmt::format(
      "{} has {:.3g} processor{} for the training thread, the engine's thread and NCCL's threads, which then wait for "
      "one another: give each rank {:.0f} or more (srun --cpus-per-task, mpirun --map-by ...:PE=N)",
      comm::rank_at(static_cast<std::size_t>(share.smallest), {hosts.begin(), hosts.end()}), share.processors,
      share.processors == 1 ? "" : "s", kThreads);
}

std::string crowding(std::span<const RankCores> ranks, std::span<const std::string> hosts, int threads) {
  for (const HostRanks& host : by_host(hosts)) {
    for (const int r : host.ranks) {
      const RankCores& rank = ranks[static_cast<std::size_t>(r)];
      // Ranks that can run nowhere else than on the processors of rank r.
      std::size_t inside = 0;
      for (const int other : host.ranks) {
        const std::vector<int>& theirs = ranks[static_cast<std::size_t>(other)].cpus;
        inside += std::includes(rank.cpus.begin(), rank.cpus.end(), theirs.begin(), theirs.end()) ? 1 : 0;
      }
      if (inside * static_cast<std::size_t>(threads) > rank.cpus.size()) {
        return fmt::format(
            "{}: {} take turns on CPU{} {}; start fewer ranks or give --threads fewer, and look at the launcher's "
            "binding and at OMP_PROC_BIND if the host has more",
            host.name, ranks_with(inside, threads), rank.cpus.size() == 1 ? "" : "s", cpu_list(rank.cpus));
      }
      if (rank.quota <= 0) continue;
      const std::size_t sharing = sharers(ranks, host.ranks, rank);
      if (static_cast<double>(sharing) * threads > rank.quota + kRounding) {
        return fmt::format(
            "{}: {} use up the cgroup's quota of {:.4g} processors, and then the kernel stops them for a part of every "
            "tenth of a second; start fewer ranks, give --threads fewer, or ask for more processors",
            host.name, ranks_with(sharing, threads), rank.quota);
      }
    }
  }
  return {};
}

std::string shared_cores(std::span<const RankCores> ranks, std::span<const std::string> hosts, int threads) {
  if (!crowding(ranks, hosts, threads).empty()) return {};
  for (const HostRanks& host : by_host(hosts)) {
    for (const int r : host.ranks) {
      const std::set<int> cores = physical(ranks[static_cast<std::size_t>(r)]);
      std::size_t inside = 0;  // ranks that can run nowhere else than on these cores
      std::set<int> cpus;
      for (const int other : host.ranks) {
        const RankCores& rank = ranks[static_cast<std::size_t>(other)];
        const std::set<int> theirs = physical(rank);
        if (!std::includes(cores.begin(), cores.end(), theirs.begin(), theirs.end())) continue;
        ++inside;
        cpus.insert(rank.cpus.begin(), rank.cpus.end());
      }
      if (inside * static_cast<std::size_t>(threads) <= cores.size()) continue;
      const std::size_t fitting = cores.size() / inside;
      return fmt::format(
          "{}: {} run on {} core{}, because CPUs {} are hardware threads, and those of a core share its arithmetic "
          "units; {}",
          host.name, ranks_with(inside, threads), cores.size(), cores.size() == 1 ? "" : "s",
          cpu_list({cpus.begin(), cpus.end()}),
          fitting > 0 ? fmt::format("give --threads {}", fitting)
                      : "bind each rank to a core of its own (mpirun --bind-to core, srun --cpu-bind=cores), or start "
                        "fewer ranks");
    }
  }
  return {};
}

std::string small_grant(std::span<const RankCores> ranks, std::span<const std::string> hosts) {
  for (const HostRanks& host : by_host(hosts)) {
    const std::map<int, int> users = users_of(ranks, host.ranks);
    for (const int r : host.ranks) {
      const RankCores& rank = ranks[static_cast<std::size_t>(r)];
      const double share = share_of_mask(rank, users);
      if (rank.granted <= 0 || rank.granted >= share - kRounding) continue;
      return fmt::format(
          "rank {} may use {:.3g} of the CPUs of {}, but computes on {:.3g} by default, because Slurm granted no more "
          "(SLURM_CPUS_PER_TASK): srun --cpus-per-task asks for more",
          r, share, host.name, rank.granted);
    }
  }
  return {};
}

std::string narrow_binding(std::span<const RankCores> ranks, std::span<const std::string> hosts) {
  for (const HostRanks& host : by_host(hosts)) {
    const RankCores& rank = ranks[static_cast<std::size_t>(host.ranks.front())];
    const auto own = static_cast<int>(rank.cpus.size());
    if (host.ranks.size() > 1 || own >= rank.launcher_cpus) continue;
    return fmt::format(
        "rank {} is the only one on {} and is bound to {} of the {} CPUs that its launcher may use; let it have all: "
        "mpirun --bind-to none",
        host.ranks.front(), host.name, own, rank.launcher_cpus);
  }
  return {};
}

}  // namespace hvd::bench
