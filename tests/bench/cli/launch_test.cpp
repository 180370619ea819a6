// Tests launch detection: it must find rank and world in recorded environments of mpirun 4.1, srun, salloc and jsrun.
#include "bench/cli/launch.h"

#include <gtest/gtest.h>

#include <csignal>

#include "bench/world/ranks.h"
#include "tests/base/errors.h"

namespace hvd::bench::launch_test {
namespace {

const Environment kMpirun{{"OMPI_COMM_WORLD_SIZE", "4"},       {"OMPI_COMM_WORLD_RANK", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_APP_CTX_NUM_PROCS", "2 2"},
                          {"OMPI_MCA_orte_num_nodes", "2"},    {"SLURM_NTASKS", "8"}};

Environment slurm_step(bool with_pmix) {
  Environment environment{{"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"},
                          {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"},  {"SLURM_LOCALID", "1"},
                          {"SLURM_STEP_NUM_NODES", "2"}};
  if (with_pmix) environment["PMIX_RANK"] = "3";
  return environment;
}

std::string refusal(const Environment& environment, const Options& given, Errc expected = Errc::kInvalidArgument,
                    bool mpi = true) {
  Options options = given;
  try {
    check_launch(detect_launch(environment), options, mpi);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected);
    return error.what();
  }
  return "";
}

std::string refusal(const Environment& environment) { return refusal(environment, Options()); }

Options with(CommBackend comm, int ranks = 0) {
  Options options;
  options.comm = comm;
  options.ranks = ranks;
  return options;
}

TEST(Launch, Mpirun) {
  const Launch launch = detect_launch(kMpirun);
  EXPECT_EQ(launch.launcher, Launcher::kMpirun);
  EXPECT_EQ(launch.size, 4) << "the innermost launcher counts";
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.nodes, 2);
  EXPECT_TRUE(launch.first_of_its_command) << "rank 2 is the first of the second command";
  Options options;
  check_launch(launch, options, true);
  EXPECT_EQ(options.comm, CommBackend::kMpi);
}

TEST(Launch, TheMpiIsTheLaunchersIfItNamesOne) {
  struct Case {
    Environment environment;
    comm::MpiAbi launcher;
    bool launched;
  };
  for (const Case& one :
       {Case{kMpirun, comm::MpiAbi::kOpenMpi, true},
        Case{{{"PMI_SIZE", "3"}, {"PMI_RANK", "1"}}, comm::MpiAbi::kMpich, true},
        Case{slurm_step(true), comm::MpiAbi::kUnknown, true},
        Case{{{"JSM_NAMESPACE_SIZE", "6"}}, comm::MpiAbi::kUnknown, true}, Case{{}, comm::MpiAbi::kUnknown, false}}) {
    Environment environment = one.environment;
    environment["HVD_MPI"] = "/opt/libmpi.so";
    const comm::MpiChoice choice = mpi_choice(process_start(environment));
    EXPECT_EQ(choice.launcher, one.launcher) << choice.evidence;
    EXPECT_EQ(choice.launched, one.launched) << choice.evidence;
    EXPECT_EQ(choice.wanted, "/opt/libmpi.so");
  }
}

TEST(Launch, OneProcessOfMpirunInsideALargerAllocationIsMeant) {
  Environment environment = kMpirun;
  environment["OMPI_COMM_WORLD_SIZE"] = "1";
  environment["OMPI_COMM_WORLD_RANK"] = "0";
  EXPECT_EQ(refusal(environment), "");
}

TEST(Launch, ARankThatIsNotInItsWorldIsRefused) {
  Environment environment = kMpirun;
  environment["OMPI_COMM_WORLD_RANK"] = "4";
  EXPECT_NE(refusal(environment).find("OMPI_COMM_WORLD_SIZE=4 contradicts OMPI_COMM_WORLD_RANK=4"), std::string::npos);
  environment["OMPI_COMM_WORLD_SIZE"] = "1";
  const Launch launch = detect_launch(environment);
  EXPECT_NE(refusal(environment), "");
  EXPECT_EQ(error_reporting(launch, Error(Errc::kInvalidArgument, ""), ErrorStage::kUsage), ErrorReporting::kNow)
      << "nobody else speaks";
}

TEST(Launch, ARankOutsideItsWorldIsRefusedUnderEveryLauncher) {
  const Environment step{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "7"}};
  EXPECT_EQ(refusal(step).find("SLURM_STEP_NUM_TASKS=1 contradicts SLURM_PROCID=7"), 0U) << refusal(step);
  const Environment pmi{{"PMI_SIZE", "1"}, {"PMI_RANK", "3"}};
  EXPECT_EQ(refusal(pmi).find("PMI_SIZE=1 contradicts PMI_RANK=3"), 0U) << refusal(pmi);
}

TEST(Launch, ARankThatIsNotMpisIsObjectedTo) {
  const Launch launch = detect_launch(kMpirun);
  EXPECT_EQ(rank_objection(launch, 2), "");
  EXPECT_EQ(rank_objection(launch, 0).find("OMPI_COMM_WORLD_RANK=2 of a process that is rank 0 in MPI; "), 0U);
  EXPECT_EQ(rank_objection(detect_launch({}), 1), "") << "a launcher that says nothing";
  const Launch half = detect_launch({{"PMI_SIZE", "2"}});
  EXPECT_EQ(rank_objection(half, 0), "");
  EXPECT_EQ(rank_objection(half, 1).find("PMI_SIZE=2 without PMI_RANK: "), 0U) << rank_objection(half, 1);
}

TEST(Launch, SlurmStep) {
  const Launch launch = detect_launch(slurm_step(true));
  EXPECT_EQ(launch.launcher, Launcher::kSlurm);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.nodes, 2);
  EXPECT_EQ(refusal(slurm_step(true)), "");
}

TEST(Launch, SlurmStepWithoutPmixWouldBeSeparateWorlds) {
  const std::string text = refusal(slurm_step(false));
  EXPECT_NE(text.find("SLURM_STEP_NUM_TASKS=4"), std::string::npos);
  EXPECT_NE(text.find("srun --mpi=pmix -n 4 hvd_bench"), std::string::npos);
}

TEST(Launch, AllocationWithoutAStepIsAWorldOfOne) {
  for (const Environment& environment :
       {Environment{{"SLURM_NTASKS", "4"}},
        Environment{{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},
        Environment{{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}}}) {
    const std::string text = refusal(environment);
    EXPECT_NE(text.find("SLURM_NTASKS=4"), std::string::npos) << text;
    EXPECT_NE(text.find("srun --mpi=pmix -n 4 hvd_bench"), std::string::npos) << text;
    EXPECT_NE(text.find("mpirun -n 4 hvd_bench"), std::string::npos) << text;
    EXPECT_EQ(refusal(environment, with(CommBackend::kLoopback)), "") << "said on purpose";
    EXPECT_EQ(refusal(environment, with(CommBackend::kAuto, 4)), "");
    EXPECT_NE(refusal(environment, with(CommBackend::kNone)), "");
  }
  EXPECT_EQ(refusal({{"SLURM_NTASKS", "1"}}), "");
  EXPECT_EQ(refusal({{"LSB_DJOB_NUMPROC", "84"}}), "") << "84 slots may be for the threads of one process";
}

TEST(Launch, SeveralProcessesCannotEachBeAWorldOfThreads) {
  EXPECT_NE(refusal(kMpirun, with(CommBackend::kLoopback, 2)).find("separate world"), std::string::npos);
  EXPECT_NE(refusal(slurm_step(true), with(CommBackend::kAuto, 2)), "");
}

TEST(Launch, WithoutMpiInTheBuild) {
  EXPECT_NE(refusal(kMpirun, Options(), Errc::kUnsupported, false).find("HVD_WITH_MPI=ON"), std::string::npos);
}

TEST(Launch, JsrunAndPmi) {
  const Launch jsm = detect_launch({{"JSM_NAMESPACE_SIZE", "12"}, {"JSM_NAMESPACE_RANK", "5"}});
  EXPECT_EQ(jsm.launcher, Launcher::kJsm);
  EXPECT_EQ(jsm.size, 12);
  EXPECT_EQ(jsm.rank, 5);
  const Launch pmi = detect_launch({{"PMI_SIZE", "3"}, {"PMI_RANK", "1"}});
  EXPECT_EQ(pmi.launcher, Launcher::kPmi);
  EXPECT_EQ(pmi.size, 3);
  const Options options;
  test::expect_error(Errc::kInvalidArgument, {"PMI_SIZE=3", "but MPICH 4.1 made each a separate world"},
                     [&] { check_world(pmi, 1, options, "MPICH 4.1"); });
  EXPECT_NO_THROW(check_world(pmi, 3, options));
}

TEST(Launch, ByHand) {
  const Launch launch = detect_launch({{"HOME", "/root"}, {"SLURM_NTASKS", "many"}});
  EXPECT_EQ(launch.launcher, Launcher::kNone);
  EXPECT_EQ(launch.size, 1);
  Options options = with(CommBackend::kAuto, 2);
  check_launch(launch, options, true);
  EXPECT_EQ(options.comm, CommBackend::kLoopback);
  Options alone;
  check_launch(launch, alone, true);
  EXPECT_EQ(alone.comm, CommBackend::kAuto);
}

TEST(Launch, OneVoice) {
  Launch root = detect_launch(kMpirun);
  root.rank = 0;
  Launch second = root;
  second.rank = 1;
  second.first_of_its_command = false;
  second.local_rank = 1;
  const Error usage(Errc::kInvalidArgument, "x");
  const Error lost_root(Errc::kPeerLost, "rank 1 (host n1) waited 5 s for rank 0 (host n1)");
  const Error lost_tenth(Errc::kPeerLost, "rank 1 (host n1) waited 5 s for rank 10 (host n1)");
  EXPECT_EQ(error_reporting(root, usage, ErrorStage::kUsage), ErrorReporting::kNow);
  EXPECT_EQ(error_reporting(second, usage, ErrorStage::kUsage), ErrorReporting::kSilent);
  EXPECT_EQ(error_reporting(detect_launch(kMpirun), usage, ErrorStage::kUsage), ErrorReporting::kNow)
      << "another command line than rank 0's";
  EXPECT_EQ(error_reporting(second, lost_tenth, ErrorStage::kSession), ErrorReporting::kSilent);
  EXPECT_EQ(error_reporting(second, lost_root, ErrorStage::kSession), ErrorReporting::kUnlessStopped)
      << "rank 0 cannot say it";
  const Error lost_second(Errc::kPeerLost, "rank 0 (host n1) waited 5 s for rank 1 (host n1)");
  const Error dead_root(Errc::kPeerLost,
                        "rank 0 (host a) is lost: its process 7 has ended while rank 1 (host a) waited");
  const Error dead_second(Errc::kPeerLost,
                          "rank 1 (host a) is lost: its process 7 has ended while rank 0 (host a) waited for it");
  EXPECT_EQ(error_reporting(root, dead_second, ErrorStage::kSession), ErrorReporting::kNow);
  EXPECT_EQ(error_reporting(second, dead_second, ErrorStage::kSession), ErrorReporting::kSilent);
  EXPECT_EQ(error_reporting(second, dead_root, ErrorStage::kSession), ErrorReporting::kUnlessStopped);
  EXPECT_EQ(error_reporting(root, lost_root, ErrorStage::kSession), ErrorReporting::kSilent);
  EXPECT_EQ(error_reporting(root, lost_second, ErrorStage::kSession), ErrorReporting::kNow);
  EXPECT_EQ(error_reporting(second, lost_second, ErrorStage::kSession), ErrorReporting::kSilent)
      << "it was stopped, and goes on";
  EXPECT_EQ(error_reporting(second, Error(Errc::kOutOfMemory, "x"), ErrorStage::kSession),
            ErrorReporting::kUnlessStopped);
  EXPECT_EQ(error_reporting(second, Error(Errc::kMismatch, "x"), ErrorStage::kSession), ErrorReporting::kSilent);
  EXPECT_EQ(error_reporting(second, Error(Errc::kUnsupported, "x"), ErrorStage::kHost), ErrorReporting::kUnlessStopped);
  const Launch slurm = detect_launch(slurm_step(true));
  EXPECT_EQ(error_reporting(slurm, Error(Errc::kUnsupported, "x"), ErrorStage::kHost), ErrorReporting::kSilent)
      << "its host's first rank says it";
}

TEST(Launch, GraceIsShorterThanTheLaunchersPatience) {
  EXPECT_LT(grace(detect_launch(kMpirun), SIGTERM).count(), 1000);
  Environment open_mpi_5 = kMpirun;
  open_mpi_5["PRTE_LAUNCHED"] = "1";
  EXPECT_LE(grace(detect_launch(open_mpi_5), SIGTERM).count(), 100) << "it kills after 250 ms";
  EXPECT_LT(grace(detect_launch(slurm_step(true)), SIGTERM).count(), 30000);
  EXPECT_GT(grace(detect_launch(slurm_step(true)), SIGUSR1).count(), 10000);
}

}  // namespace
}  // namespace hvd::bench::launch_test
