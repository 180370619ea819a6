// Tests how the processors of a host are shared by its ranks. Expected values are computed by hand.
#include "bench/world/cores.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/cli/launch.h"
#include "bench/store/host_facts.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::cores_test {
namespace {

using ::testing::IsSubstring;
using Cpus = std::vector<int>;
using Hosts = std::vector<std::string>;

std::vector<RankCores> ranks(std::initializer_list<Cpus> cpus) {
  std::vector<RankCores> out;
  for (const Cpus& of_rank : cpus) out.push_back({.cpus = of_rank});
  return out;
}

std::vector<RankCores> limited(std::size_t count, double quota) {
  return std::vector<RankCores>(count, RankCores{.cpus = {0, 1, 2, 3}, .quota = quota, .group = "/job"});
}

TEST(Cores, SharedByAllRanksOfAHost) {
  const auto all = ranks({{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}});
  const CoreShare share = share_cores(all, Hosts{"a", "a"}, 0);
  EXPECT_EQ(share.threads, 3);
  EXPECT_FALSE(share.spare_core);
  EXPECT_FALSE(share.oversubscribed);
  EXPECT_TRUE(share_cores(all, Hosts{"a", "a"}, 2).spare_core);
  EXPECT_TRUE(share_cores(all, Hosts{"a", "a"}, 4).oversubscribed);
}

TEST(Cores, ARankOfSeveralOnGpusNeedsThreeProcessors) {
  const auto judge = [](const std::vector<RankCores>& all, const Hosts& hosts) {
    return few_cpus(share_cores(all, hosts, 8), hosts);
  };
  const Hosts pair{"a", "b"};
  EXPECT_EQ(judge(ranks({{0, 1, 2}, {0, 1, 2, 3}}), pair), "");
  EXPECT_EQ(judge(ranks({{0}}), {"a"}), "") << "without peers there is no NCCL";
  EXPECT_EQ(judge(ranks({{0, 1, 2}, {5}}), pair),
            "rank 1 (host b) has 1 processor for the training thread, the engine's thread and NCCL's threads, which "
            "then wait for one another: give each rank 3 or more (srun --cpus-per-task, mpirun --map-by ...:PE=N)");
  EXPECT_PRED_FORMAT2(IsSubstring, "rank 0 (host a) has 2 processors for",
                      judge(ranks({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}), {"a", "a", "b"}))
      << "two ranks share four";
  EXPECT_PRED_FORMAT2(IsSubstring, "rank 0 (host a) has 2.5 processors for", judge(limited(2, 2.5), pair)) << "a quota";
}

TEST(Cores, BoundRanksKeepTheirOwn) {
  const auto all = ranks({{0, 1}, {2, 3, 4}});
  EXPECT_EQ(share_cores(all, Hosts{"a", "a"}, 0).threads, 2) << "the smallest share";
  EXPECT_TRUE(share_cores(all, Hosts{"a", "a"}, 0).spare_core) << "core 4";
}

TEST(Cores, HostsDoNotShare) {
  const auto all = ranks({{0, 1}, {0, 1}, {0, 1}, {0, 1}});
  EXPECT_EQ(share_cores(all, Hosts{"a", "b", "c", "d"}, 0).threads, 2);
  EXPECT_EQ(share_cores(all, Hosts{"a", "a", "a", "b"}, 0).threads, 1) << "never none";
  EXPECT_FALSE(share_cores(all, Hosts{"a", "a", "b", "b"}, 1).oversubscribed);
  EXPECT_TRUE(share_cores(all, Hosts{"a", "a", "a", "b"}, 1).oversubscribed) << "host a is";
}

TEST(Cores, RanksThatShareCoresCannotAllRunAtOnce) {
  const auto all = ranks({{0, 1}, {0, 1}, {0, 1}, {0, 1}});
  EXPECT_EQ(share_cores(all, Hosts{"a", "a", "a", "a"}, 1).ranks_at_once, 2);
  EXPECT_EQ(share_cores(all, Hosts{"a", "a", "a", "a"}, 2).ranks_at_once, 1);
  EXPECT_EQ(share_cores(all, Hosts{"a", "a", "a", "a"}, 8).ranks_at_once, 1) << "never none";
  EXPECT_EQ(share_cores(all, Hosts{"a", "a", "b", "b"}, 1).ranks_at_once, 2);
  const auto uneven = ranks({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1}});
  EXPECT_EQ(share_cores(uneven, Hosts{"a", "a", "b"}, 1).ranks_at_once, 2) << "the smallest host's";
  EXPECT_EQ(share_cores(ranks({{0, 1}, {2, 3}}), Hosts{"a", "a"}, 0).ranks_at_once, 2);
}

TEST(Cores, AQuotaIsSharedByItsRanks) {
  EXPECT_EQ(share_cores(limited(1, 2.5), Hosts{"a"}, 0).threads, 2);
  EXPECT_EQ(share_cores(limited(2, 2.5), Hosts{"a", "a"}, 0).threads, 1);
  EXPECT_EQ(share_cores(limited(1, 8), Hosts{"a"}, 0).threads, 4) << "the mask's";
  EXPECT_TRUE(share_cores(limited(1, 2.5), Hosts{"a"}, 1).spare_core);
  EXPECT_FALSE(share_cores(limited(1, 1.5), Hosts{"a"}, 1).spare_core);
  EXPECT_TRUE(share_cores(limited(3, 2.5), Hosts{"a", "a", "a"}, 1).oversubscribed);
  auto two_containers = limited(2, 2);
  two_containers[1].group = "/other";
  EXPECT_EQ(share_cores(two_containers, Hosts{"a", "a"}, 0).threads, 2);
}

TEST(Cores, OpenMpMayGiveFewerThreads) {
  auto all = ranks({{0, 1, 2, 3}, {4, 5, 6, 7}});
  all[1].thread_limit = 2;
  const CoreShare share = share_cores(all, Hosts{"a", "a"}, 0);
  EXPECT_EQ(share.threads, 2);
  EXPECT_EQ(share.thread_limit, 2);
  EXPECT_EQ(share_cores(all, Hosts{"a", "a"}, 3).threads, 3) << "the user's choice is refused elsewhere";
}

TEST(Cores, RanksThatTakeTurnsAreNamed) {
  const Hosts one_host{"a", "a", "a"};
  EXPECT_EQ(crowding(ranks({{0, 1}, {0, 1}}), Hosts{"a", "a"}, 1), "");
  EXPECT_PRED_FORMAT2(IsSubstring, "a: 3 ranks with 1 compute thread each take turns on CPUs 0-1; ",
                      crowding(ranks({{0, 1}, {0, 1}, {0, 1}}), one_host, 1));
  EXPECT_PRED_FORMAT2(IsSubstring, "a: 2 ranks with 1 compute thread each take turns on CPU 0; ",
                      crowding(ranks({{0}, {1, 2}, {0}}), one_host, 1))
      << "although the host has a processor for each";
  EXPECT_PRED_FORMAT2(IsSubstring, "b: 1 rank with 3 compute threads take turns on CPUs 0-1; ",
                      crowding(ranks({{0, 1}}), Hosts{"b"}, 3));
  EXPECT_EQ(crowding(ranks({{0, 1}, {0, 1}, {0, 1}}), Hosts{"a", "b", "c"}, 2), "");
  EXPECT_PRED_FORMAT2(IsSubstring, "the cgroup's quota of 1.5 processors",
                      crowding(limited(2, 1.5), Hosts{"a", "a"}, 1));
  EXPECT_EQ(crowding(limited(2, 2), Hosts{"a", "a"}, 1), "");
}

TEST(Cores, OneBoundRankIsTold) {
  auto lone = ranks({{3}});
  EXPECT_EQ(narrow_binding(lone, Hosts{"a"}), "") << "the launcher is unknown";
  lone[0].launcher_cpus = 64;
  EXPECT_PRED_FORMAT2(IsSubstring, "bound to 1 of the 64 CPUs", narrow_binding(lone, Hosts{"a"}));
  auto pair = ranks({{3}, {4}});
  pair[0].launcher_cpus = pair[1].launcher_cpus = 64;
  EXPECT_EQ(narrow_binding(pair, Hosts{"a", "a"}), "");
}

TEST(Cores, SlurmGrantsARankLessThanItsMask) {
  auto lone = ranks({{0, 1}});
  EXPECT_EQ(small_grant(lone, Hosts{"a"}), "");
  lone[0].granted = 1;
  EXPECT_EQ(share_cores(lone, Hosts{"a"}, 0).threads, 1);
  EXPECT_FALSE(share_cores(lone, Hosts{"a"}, 0).spare_core) << "the other processor is not the rank's";
  EXPECT_EQ(share_cores(lone, Hosts{"a"}, 2).threads, 2) << "the user's choice";
  EXPECT_PRED_FORMAT2(IsSubstring, "rank 0 may use 2 of the CPUs of a, but computes on 1 by default",
                      small_grant(lone, Hosts{"a"}));
  lone[0].granted = 4;
  EXPECT_EQ(share_cores(lone, Hosts{"a"}, 0).threads, 2) << "the mask's";
  auto threads = ranks({{0, 1, 2, 3}, {0, 1, 2, 3}});
  threads[0].granted = threads[1].granted = 2;  // one task of four processors with --ranks 2
  EXPECT_EQ(share_cores(threads, Hosts{"a", "a"}, 0).threads, 2);
  EXPECT_EQ(small_grant(threads, Hosts{"a", "a"}), "") << "all of its share";
}

TEST(Cores, OnlyTasksThatSrunStartedHaveAGrant) {
  const auto granted = [](Environment environment, const char* number) {
    environment.insert({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "1"}, {"SLURM_CPUS_PER_TASK", number}});
    return task_processors(process_start(std::move(environment)));
  };
  const Environment step{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}};
  EXPECT_EQ(granted(step, "2"), 2);
  for (const char* unreadable : {"", "0", "-1", "2x", "99999999999"}) EXPECT_EQ(granted(step, unreadable), 0);
  EXPECT_EQ(task_processors(process_start(step)), 0) << "srun without --cpus-per-task";
  EXPECT_EQ(granted({}, "2"), 0) << "by hand in salloc or in a batch script";
  EXPECT_EQ(granted({{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}, "2"), 0) << "a batch script";
  Environment shell = step;
  shell["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(granted(shell, "2"), 0) << "by hand in salloc's interactive step";
  Environment below_mpirun = step;  // on other nodes srun starts mpirun's daemon, whose children inherit
  below_mpirun["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_EQ(granted(below_mpirun, "2"), 0);
}

TEST(Cores, HardwareThreadsAreNotTakenForCores) {
  const test::Folder folder;  // a made-up /sys/devices/system/cpu: processors 0-3 and 4-7 are threads of four cores
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::filesystem::path topology = folder.path() / fmt::format("cpu{}", cpu) / "topology";
    std::filesystem::create_directories(topology);
    std::ofstream(topology / "thread_siblings_list") << fmt::format("{},{}\n", cpu % 4, cpu % 4 + 4);
  }
  const auto caution = [&](std::initializer_list<Cpus> cpus, const Hosts& hosts, int threads) {
    std::vector<RankCores> all = ranks(cpus);
    for (RankCores& rank : all) rank.cores = cores_of(rank.cpus, folder.path());
    if (threads == 0) threads = share_cores(all, hosts, 0).threads;
    return shared_cores(all, hosts, threads);
  };
  const Cpus every{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(caution({every}, {"a"}, 0),
            "a: 1 rank with 8 compute threads run on 4 cores, because CPUs 0-7 are hardware threads, and those of a "
            "core share its arithmetic units; give --threads 4");
  EXPECT_PRED_FORMAT2(IsSubstring, "a: 2 ranks with 4 compute threads each run on 4 cores, ",
                      caution({every, every}, {"a", "a"}, 0));
  EXPECT_EQ(caution({every, every}, {"a", "a"}, 2), "");
  EXPECT_EQ(caution({every, every}, {"a", "b"}, 4), "");
  EXPECT_PRED_FORMAT2(IsSubstring, "b: 2 ranks with 1 compute thread each run on 1 core, because CPUs 1,5 are",
                      caution({{0}, {1}, {5}}, {"a", "b", "b"}, 0));
  EXPECT_EQ(caution({{0}, {5}}, {"a", "a"}, 0), "");
  EXPECT_PRED_FORMAT2(IsSubstring, "give --threads 1", caution({{2, 6}}, {"a"}, 0)) << "mpirun --bind-to core";
  EXPECT_EQ(caution({{0, 4}, {0, 4}, {0, 4}}, {"a", "a", "a"}, 1), "") << "crowding() says more";
  EXPECT_EQ(cores_of({1, 9}, folder.path()), (Cpus{1, 9})) << "the kernel does not tell of 9";
}

TEST(Cores, MessageHoldsEverything) {
  const RankCores sent{.cpus = {0, 2, 3},
                       .cores = {0, 2, 0},
                       .quota = 1.5,
                       .group = "/a b\\c cgroup:[1]",
                       .granted = 0.5,
                       .thread_limit = 7,
                       .launcher_cpus = 9};
  const RankCores got = parse_rank_cores(to_text(sent));
  EXPECT_EQ(got.cpus, sent.cpus);
  EXPECT_EQ(got.cores, sent.cores);
  EXPECT_EQ(got.granted, sent.granted);
  EXPECT_EQ(got.quota, sent.quota);
  EXPECT_EQ(got.group, sent.group);
  EXPECT_EQ(got.thread_limit, sent.thread_limit);
  EXPECT_EQ(got.launcher_cpus, sent.launcher_cpus);
  EXPECT_TRUE(parse_rank_cores("cpus 9-x\nnonsense").cpus.empty());
}

TEST(Cores, ThisProcessHasSome) { EXPECT_FALSE(rank_cores().cpus.empty()); }

}  // namespace
}  // namespace hvd::bench::cores_test
