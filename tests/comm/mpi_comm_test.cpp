// Tests with ranks as processes. ctest runs: mpirun -np N mpi_comm_test <mode> [algorithm] [ranks per node]
//   all       every collective, checked against a serial computation
//   library   MPI's own all-reduce, and the recorded fall-back for reductions that MPI cannot do
//   allocate  an allocation of more shared memory than there is fails on all ranks and gives the figures
//   sets      make_mpi_set() is refused before MPI has started; a rank outside a set does not wait for the set
//   alone     only rank 0 makes a set: rank 0 gives up after its patience, and ends without MPI_Finalize
//   unequal   the last rank expects fewer bytes than are sent to this rank: all ranks end at once
//   kill      the last rank dies by SIGKILL in mid-run     } the other ranks print what they saw
//   stop      the last rank stops answering (SIGSTOP)      }
// The program is linked with no MPI. HVD_MPI names the one to load: "openmpi" or "mpich".
// This is a program without GoogleTest, because a rank that fails must still take part in every collective.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/mpi/environment.h"
#include "engine/comm/mpi_library.h"
#include "tests/base/patience.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/share_checks.h"

namespace {

using namespace hvd;
using namespace std::chrono_literals;
using comm::Communicator;

int say(Communicator& c, const char* what, const std::string& problem) {
  if (problem.empty()) return 0;
  std::printf("FAILED rank %d: %s: %s\n", c.topology().rank, what, problem.c_str());
  return 1;
}

int check_everything(Communicator& c) {
  int failures = say(c, "control plane", test::check_control_plane(c));
  failures += say(c, "all_reduce", test::check_all_reduce_matrix(c, true));
  failures += say(c, "shares", test::check_share_matrix(c));
  for (const std::size_t bytes : {1U, 40000U, 3000001U}) {
    failures += say(c, "broadcast", test::check_data_broadcast(c, bytes));
  }
  return failures;
}

int check_library(Communicator& c) {
  int failures = 0;
  failures +=
      say(c, "fp32", test::check_all_reduce(c, {100003, DataType::kF32, ReduceOp::kAverage, test::Memory::kPlain}));
  if (c.data().description() != "mpi's own") failures += say(c, "description", c.data().description());
  failures +=
      say(c, "bf16", test::check_all_reduce(c, {100003, DataType::kBF16, ReduceOp::kSum, test::Memory::kPlain}));
  if (c.data().description() != "mpi's own + ring over mpi") failures += say(c, "description", c.data().description());
  return failures;
}

int check_allocation(Communicator& c) {
  try {
    const auto memory = c.data().allocate(std::size_t{1} << 42, Deadline::after(20s));
    return say(c, "allocate", "4 TiB were granted");
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool good = error.code() == Errc::kOutOfMemory && text.find("MiB; /dev/shm has ") != std::string::npos;
    if (!good) return say(c, "allocate", text);
  }
  // The allocation failed on all ranks alike, so the ranks are still in step.
  c.control().barrier(Deadline::after(20s));
  return say(c, "after it",
             test::check_all_reduce(c, {100003, DataType::kF32, ReduceOp::kSum, test::Memory::kRegistered}));
}

std::string set_problem(const std::vector<int>& ranks, Patience patience = comm::kMeetPatience) {
  try {
    const auto set = comm::make_mpi_set(ranks, {}, patience);
    if (set == nullptr) return "not in it";
    float value = 1;
    set->data().all_reduce(&value, 1, DataType::kF32, ReduceOp::kSum, Deadline::after(20s));
    return value == static_cast<float>(ranks.size()) ? "" : "wrong sum";
  } catch (const Error& error) {
    return std::string(name(error.code())) + ": " + error.what();
  }
}

/// Call before the process has started MPI.
int check_sets() {
  const std::string refused =
      "invalid_argument: make_mpi_set: MPI has not been started; make a communicator of the world (make_mpi) first, "
      "and keep it";
  const std::string early = set_problem({0});
  const auto world = comm::make_mpi();
  int failures = early == refused ? 0 : say(*world, "before MPI", "'" + early + "'");
  const bool member = world->topology().rank == 0;
  for (int round = 0; round < 3; ++round) {
    const std::string problem = set_problem({0});
    if (problem != (member ? "" : "not in it")) failures += say(*world, "set", problem);
    failures += say(*world, "set of all", set_problem({1, 0}));
    if (set_problem({0, 9}).find("rank 9 is not one of") == std::string::npos)
      failures += say(*world, "bad list", "no");
  }
  return failures + say(*world, "world after it", test::check_control_plane(*world));
}

int meet_alone(Communicator& world) {
  if (world.topology().rank != 0) {
    std::this_thread::sleep_for(3s);
    return 0;
  }
  std::printf("rank 0 saw %s\n", set_problem({0, 1}, 300ms).c_str());
  std::fflush(stdout);
  return 0;
}

int send_unequal(Communicator& c) {
  std::signal(SIGTERM, SIG_IGN);  // for the same reason as in lose_a_rank()
  const auto start = Clock::now();
  const bool last = c.topology().rank == c.topology().size - 1;
  std::vector<std::byte> data(8192);
  const auto text = [&] {
    try {
      // The last rank's receive is too short. The arguments of the other ranks are right.
      c.data().broadcast(data.data(), last ? 4096 : 8192, 0, Deadline::after(test::kNever));
      c.control().barrier(Deadline::after(test::kNever));
    } catch (const Error& error) {
      return std::string(name(error.code())) + ": " + error.what();
    }
    return std::string("no error");
  }();
  const char* const expected = last ? "mismatch: MPI_Test" : "peer_lost: rank 2 ";
  const bool good = text.find(expected) == 0 && Clock::now() - start < test::kAtOnce;
  std::printf("rank %d saw %s\n", c.topology().rank, text.c_str());
  if (!good) return say(c, "unequal", text);
  std::fflush(stdout);
  // When a rank leaves without MPI_Finalize, the launcher ends the other ranks, which may still have to print.
  std::this_thread::sleep_for(2s);
  return 0;
}

int say_eager_limit() {
  const auto environment = comm::MpiEnvironment::acquire();
  const MutexLock lock(environment->calls());
  std::printf("eager over tcp: %zu bytes\n", environment->tcp_eager_bytes());
  return 0;
}

/// Reduces until the last rank is lost. Returns exit code 5, as the program's main() would.
int lose_a_rank(Communicator& c, int signal_number) {
  std::signal(SIGTERM, SIG_IGN);  // if the launcher ends this rank, it must still print its report
  const auto memory = c.data().allocate(8 << 20, Deadline::after(20s));
  for (int step = 1; step <= 1000; ++step) {
    if (step == 20 && c.topology().rank == c.topology().size - 1) {
      std::raise(signal_number);
      return 1;
    }
    try {
      c.data().all_reduce(memory->bytes().data(), (8 << 20) / 4, DataType::kF32, ReduceOp::kSum,
                          Deadline::after(1500ms));
    } catch (const Error& error) {
      std::printf("rank %d at step %d saw %s: %s\n", c.topology().rank, step, std::string(name(error.code())).c_str(),
                  error.what());
      std::fflush(stdout);
      c.control().abort(error.what());
      return exit_code(error.code());
    }
  }
  return say(c, "lost rank", "nobody noticed");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "all";
  comm::CommOptions options;
  try {
    if (const char* const wanted = std::getenv("HVD_MPI")) comm::load_mpi({.wanted = wanted, .evidence = {}});
    if (argc > 2) options.algorithm = comm::parse_algorithm(argv[2]);
    if (argc > 3) options.ranks_per_node = std::atoi(argv[3]);
    if (mode == "sets") {
      const int failures = check_sets();
      if (failures == 0) std::printf("good: sets\n");
      return failures == 0 ? 0 : 1;
    }
    auto c = comm::make_mpi(options);
    int result = 2;
    if (mode == "all") result = check_everything(*c);
    if (mode == "library") result = check_library(*c);
    if (mode == "allocate") result = check_allocation(*c);
    if (mode == "eager") result = say_eager_limit();
    if (mode == "alone") return meet_alone(*c);
    if (mode == "unequal") return send_unequal(*c);
    if (mode == "kill") return lose_a_rank(*c, SIGKILL);
    if (mode == "stop") return lose_a_rank(*c, SIGSTOP);
    if (result == 0 && c->topology().rank == 0) {
      std::printf("good: %d ranks on %d nodes, %s, %s\n", c->topology().size, c->topology().nodes,
                  c->data().description().c_str(), c->library().c_str());
    }
    return result == 0 ? 0 : 1;
  } catch (const Error& error) {
    std::printf("FAILED with %s: %s\n", std::string(name(error.code())).c_str(), error.what());
    return exit_code(error.code());
  }
}
