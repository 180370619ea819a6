// Tests the NCCL data plane over fake GPUs and a fake NCCL: the order of waits, and the texts of errors.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "engine/comm/nccl/trial.h"
#include "engine/gpu/device.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/gpu/plain_library.h"

namespace hvd::test::nccl_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCount = 300;

Deadline soon() { return Deadline::after(kNever); }

class NcclReduction : public ::testing::TestWithParam<std::tuple<int, DataType, ReduceOp>> {};

TEST_P(NcclReduction, IsRightAndInStreamOrder) {
  const auto [size, type, op] = GetParam();
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto body = [&, size = size, type = type, op = op](GpuRank& rank, comm::DeviceCommunicator& communicator) {
      comm::DevicePlane& plane = communicator.device();
      const auto memory = plane.allocate(kCount * size_of(type), soon());
      EXPECT_EQ(std::count(memory->bytes().begin(), memory->bytes().end(), std::byte{0}),
                static_cast<std::ptrdiff_t>(memory->bytes().size()));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->bytes().data()) % 4096, 0U);
      const auto compute = rank.gpu.make_stream(gpu::Priority::kNormal);
      const auto ready = rank.gpu.make_event(gpu::Timing::kOff);
      produce(rank, memory->bytes(), type, compute);
      rank.gpu.record(ready, compute);
      rank.gpu.wait(plane.stream(), ready);
      plane.all_reduce(memory->bytes().data(), kCount, type, op, soon());
      plane.complete("the test's reduction", soon());
      expect_reduced(memory->bytes(), size, type, op);
    };
    const GpuOutcome outcome = on_connected_ranks(size, {.seed = seed}, body);
    // Each rank finalises and then destroys its communicator; no rank aborts.
    EXPECT_EQ(logged(outcome, "finalize"), size > 1 ? size : 0) << outcome.text();
    EXPECT_EQ(logged(outcome, "destroy"), size > 1 ? size : 0);
    EXPECT_EQ(logged(outcome, "abort"), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, NcclReduction,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(DataType::kF32, DataType::kF16, DataType::kBF16),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kAverage)));

TEST(Nccl, BroadcastAndDescription) {
  on_connected_ranks(3, {.communicator = {.max_ctas = 8}}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    EXPECT_EQ(communicator.backend(), "nccl");
    EXPECT_NE(communicator.library().find("NCCL 2.28.9 (fake)"), std::string::npos);
    const auto memory = communicator.device().allocate(5, soon());
    std::memset(memory->bytes().data(), 7 + rank.rank, 5);
    communicator.device().broadcast(memory->bytes().data(), 5, 2, soon());
    EXPECT_EQ(memory->bytes()[4], std::byte{9});
    EXPECT_EQ(communicator.data().description(), "nccl 2.28.9, memory registered, at most 8 CTAs");
  });
}

// On a non-blocking communicator, NCCL 2.28.9 starts one thread per call outside a group, and one thread per group.
TEST(Nccl, ReductionsThatAreMadeTogetherStartOneThread) {
  constexpr std::size_t kPieces = 5;
  for (const bool together : {false, true}) {
    std::atomic<int> started = 0;
    on_connected_ranks(2, {}, [&](GpuRank& rank, comm::DeviceCommunicator& communicator) {
      comm::DevicePlane& plane = communicator.device();
      const auto memory = plane.allocate(kPieces * kCount * sizeof(float), soon());
      produce(rank, memory->bytes(), DataType::kF32, plane.stream());
      communicator.control().barrier(soon());
      const int before = rank.hub.threads_started();
      communicator.control().barrier(soon());
      const auto reduce = [&] {
        for (std::size_t p = 0; p < kPieces; ++p) {
          plane.all_reduce(&memory->bytes()[p * kCount * sizeof(float)], kCount, DataType::kF32, ReduceOp::kSum,
                           soon());
        }
      };
      together ? plane.together(reduce, soon()) : reduce();
      plane.complete("the test's reductions", soon());
      communicator.control().barrier(soon());
      if (rank.rank == 0) started = rank.hub.threads_started() - before;
      expect_reduced(memory->bytes(), 2, DataType::kF32);
    });
    EXPECT_EQ(started, together ? 2 : 2 * static_cast<int>(kPieces)) << "both ranks";
  }
}

TEST(Nccl, StartingTakesAsManyCollectivesOnAnyNumberOfRanks) {
  const auto collectives = [](int size) {
    std::string last;
    on_connected_ranks(size, {}, [&](GpuRank& rank, comm::DeviceCommunicator& communicator) {
      communicator.control().barrier(soon());
      if (rank.rank == 0) last = communicator.flight_record();
    });
    std::smatch number;
    EXPECT_TRUE(std::regex_search(last, number, std::regex("barrier ([0-9]+)"))) << last;
    return number[1].str();
  };
  EXPECT_EQ(collectives(2), collectives(24)) << "512 ranks wait no longer than the messages of a tree";
}

TEST(Nccl, AGroupThatFailsIsEnded) {
  on_connected_ranks(2, {}, [](GpuRank&, comm::DeviceCommunicator& communicator) {
    comm::DevicePlane& plane = communicator.device();
    const auto memory = plane.allocate(64, soon());
    EXPECT_THROW(plane.together([] { throw Error(Errc::kIo, "no"); }, soon()), Error);
    plane.together([] {}, soon());
    plane.all_reduce(memory->bytes().data(), 16, DataType::kF32, ReduceOp::kSum, soon());
    plane.complete("the test's reduction", soon());
  });
}

TEST(Nccl, ConnectsAnewWithOtherOptionsAndTheSameMemory) {
  const GpuOutcome outcome = on_connected_ranks(3, {}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    comm::DevicePlane& plane = communicator.device();
    const auto memory = plane.allocate(kCount * sizeof(float), soon());
    const auto reduced = [&] {
      produce(rank, memory->bytes(), DataType::kF32, plane.stream());
      plane.all_reduce(memory->bytes().data(), kCount, DataType::kF32, ReduceOp::kSum, soon());
      plane.complete("the test's reduction", soon());
      expect_reduced(memory->bytes(), 3, DataType::kF32);
    };
    reduced();
    EXPECT_TRUE(plane.registers_memory());
    plane.reconnect({.max_ctas = 4, .register_memory = false}, soon());
    EXPECT_EQ(plane.description(), "nccl 2.28.9, memory not registered, at most 4 CTAs");
    EXPECT_FALSE(plane.registers_memory());
    reduced();
    plane.reconnect({}, soon());
    EXPECT_EQ(plane.description(), "nccl 2.28.9, memory registered");
    reduced();
  });
  EXPECT_EQ(logged(outcome, "destroy 2"), 3) << outcome.text();
}

TEST(Nccl, PlainMemoryStaysPlain) {
  on_connected_ranks(
      2, {.communicator = {.register_memory = false}}, [](GpuRank&, comm::DeviceCommunicator& communicator) {
        const auto memory = communicator.device().allocate(100, soon());
        communicator.device().reconnect({}, soon());
        EXPECT_EQ(communicator.device().description(), "nccl 2.28.9, memory not registered (it is plain memory)");
        EXPECT_FALSE(communicator.device().registers_memory());
      });
}

TEST(Nccl, WithoutRegistrationPlainMemoryDoes) {
  const FakeNcclOptions failing{.fail_register_code = 2};
  on_connected_ranks(2, {.nccl = {{}, failing}}, [](GpuRank& rank, comm::DeviceCommunicator& communicator) {
    const auto memory = communicator.device().allocate(100, soon());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->bytes().data()) % 4096, 0U);
    EXPECT_EQ(memory->bytes().size(), 100U);
    EXPECT_EQ(communicator.data().description(),
              rank.rank == 0 ? "nccl 2.28.9, memory registered"
                             : "nccl 2.28.9, memory not registered (ncclCommRegister: unhandled system error)");
  });
}

TEST(Nccl, ARegistrationWithoutAHandleIsNone) {
  const FakeNcclOptions off{.gives_no_handle = true};
  on_connected_ranks(2, {.nccl = {off, off}}, [](GpuRank&, comm::DeviceCommunicator& communicator) {
    const auto memory = communicator.device().allocate(100, soon());
    EXPECT_EQ(communicator.data().description(),
              "nccl 2.28.9, memory not registered (ncclCommRegister gave no handle, as with NCCL_LOCAL_REGISTER=0)");
    EXPECT_FALSE(communicator.device().registers_memory());
  });
}

TEST(Nccl, TwoRanksOnOneGpuAreRefusedInOneLine) {
  const GpuOutcome outcome =
      on_gpu_ranks(3, {.uuids = {"GPU-a", "GPU-b", "GPU-a"}}, [](GpuRank& rank) { (void)rank.connect(); });
  for (const std::string& error : outcome.errors) {
    EXPECT_EQ(
        error.find("invalid_argument: rank 0 (host node0) and rank 2 (host node0) were both given GPU 2 (fake), "
                   "GPU-a: 3 ranks run on this host, and rank 2 sees 1 GPU; NCCL needs one GPU per rank: start no "
                   "more ranks per host than it has GPUs"),
        0U)
        << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  EXPECT_TRUE(outcome.log.empty() && outcome.violations.empty()) << outcome.text();
}

TEST(Nccl, TheSameGpuOnTwoHostsIsNone) {
  const std::vector<comm::nccl::RankGpu> gpus{{"GPU-a", "GPU 0 (x)", 4, "2.28.9"}, {"GPU-a", "GPU 0 (x)", 4, "2.28.9"}};
  EXPECT_EQ(comm::nccl::shared_gpu(gpus, {"a", "b"}), "");
  auto booted = gpus;
  booted[0].machine = "boot 1";
  booted[1].machine = "boot 2";
  EXPECT_EQ(comm::nccl::shared_gpu(booted, {"a", "a"}), "") << "two machines that call themselves alike";
  expect_contains(comm::nccl::shared_gpu(gpus, {"a", "a"}), "let each rank take the GPU of its local rank");
}

TEST(Nccl, TwoContainersOnOneGpuAreRefusedWhateverTheirHostsAreCalled) {
  const GpuOutcome outcome =
      on_gpu_ranks(2, {.uuids = {"GPU-a", "GPU-a"}, .ranks_per_node = 1}, [](GpuRank& rank) { (void)rank.connect(); });
  for (const std::string& error : outcome.errors) {
    EXPECT_EQ(
        error,
        "invalid_argument: rank 0 (host node0) and rank 1 (host node1) were both given GPU 1 (fake), GPU-a: their "
        "hosts are containers of one machine; NCCL needs one GPU per rank: give each container GPUs of its own "
        "(docker run --gpus, NVIDIA_VISIBLE_DEVICES)");
  }
}

TEST(Nccl, DifferentVersionsAreRefused) {
  const FakeNcclOptions other{.version = {.major = 2, .minor = 20, .patch = 5}};
  const GpuOutcome outcome = on_gpu_ranks(2, {.nccl = {{}, other}}, [](GpuRank& rank) { (void)rank.connect(); });
  for (const std::string& error : outcome.errors) {
    EXPECT_EQ(error,
              "mismatch: rank 1 (host node0) loaded NCCL 2.20.5, rank 0 (host node0) 2.28.9: give all ranks the same "
              "(HVD_NCCL_ROOT, LD_LIBRARY_PATH)");
  }
}

TEST(Nccl, WithoutAnIdAllRanksSayTheSame) {
  const FakeNcclOptions broken{.fail_unique_id = true};
  const GpuOutcome outcome = on_gpu_ranks(2, {.nccl = {broken}}, [](GpuRank& rank) { (void)rank.connect(); });
  for (const std::string& error : outcome.errors) {
    expect_contains(error, "rank 0 (host node0, GPU 0 (fake)): ncclGetUniqueId: unhandled system error");
  }
}

TEST(Nccl, AWrongSumIsFoundBeforeTraining) {
  const FakeNcclOptions wrong{.wrong_sums = 1};
  const GpuOutcome outcome = on_gpu_ranks(2, {.nccl = {wrong, wrong}}, [](GpuRank& rank) { (void)rank.connect(); });
  EXPECT_NE(outcome.text().find("check_failed: rank"), std::string::npos) << outcome.text();
  for (const std::string& error : outcome.errors) {
    expect_contains(error, "NCCL summed element 0 of a trial to 1.000000 instead of 0.000000");
  }
  EXPECT_TRUE(outcome.violations.empty()) << outcome.text();
}

TEST(Nccl, ATrialsSumIsExactInAnyWorld) {
  for (const std::size_t element : {0U, 1U, 6U, 1029U}) {
    float sum = 0;
    double exact = 0;
    for (int rank = 0; rank < 600'000; ++rank) {
      sum += comm::nccl::trial_value(rank, element);
      exact += comm::nccl::trial_value(rank, element);
    }
    EXPECT_EQ(sum, exact) << element;
  }
}

TEST(FakeNccl, NoticesACommunicatorThatGoesBeforeItsGraph) {
  const GpuOutcome outcome = on_gpu_ranks(2, {}, [](GpuRank& rank) {
    gpu::Graph graph;
    {
      const auto communicator = rank.connect();
      const gpu::DeviceMemory memory = rank.gpu.allocate(64, "a");
      gpu::Capture capture(rank.gpu, communicator->device().stream());
      communicator->device().all_reduce(memory->bytes.data(), 16, DataType::kF32, ReduceOp::kSum, soon());
      graph = capture.finish();
    }
  });
  EXPECT_EQ(outcome.violations, std::vector<std::string>(2, "a communicator was destroyed before its graphs"));
}

TEST(FakeNccl, NoticesACallOfAThreadThatUsesAnotherGpu) {
  const GpuOutcome outcome = on_gpu_ranks(1, {}, [](GpuRank& rank) {
    for (int call = 0; call < 2; ++call) {
      void* data = nullptr;
      (void)rank.nccl->allocate(64, data);
      (void)rank.nccl->free(data);
      rank.gpu.make_current();
    }
  });
  EXPECT_EQ(outcome.violations, std::vector<std::string>{"allocate: the thread's current GPU is another"});
}

TEST(Nccl, NoLibraryIsNeededForOneRank) {
  FakeWorld world(1);
  FakeRuntime gpu(world, 0);
  {
    const auto communicator = comm::make_nccl(comm::make_solo(), gpu, nullptr, {}, Deadline::after(1s));
    const auto memory = communicator->device().allocate(64, Deadline::after(1s));
    communicator->device().all_reduce(memory->bytes().data(), 16, DataType::kF32, ReduceOp::kSum, Deadline::after(1s));
    communicator->device().check();
    EXPECT_EQ(communicator->data().description(), "none");
  }
  EXPECT_TRUE(world.violations().empty());
}

// -- the library itself --------------------------------------------------------------------------------------

gpu::LibrarySearch nccl_in(const std::string& root) {
  gpu::LibrarySearch search;
  search.nccl_root = root;
  return search;
}

std::string load_error(const gpu::LibrarySearch& search) {
  return error_of([&] { return comm::nccl::load(search); });
}

TEST(NcclLibrary, VersionsAreRead) {
  EXPECT_EQ(comm::nccl::version_from_number(22809).text(), "2.28.9");
  EXPECT_EQ(comm::nccl::version_from_number(2708).text(), "2.7.8");
  EXPECT_LT(comm::nccl::version_from_number(21602), comm::nccl::kOldestVersion);
}

// This test must run before the tests that load other libraries, because these libraries stay loaded under NCCL's name.
TEST(NcclLibrary, TheInstalledNcclGivesAnIdAndFailsWithAReasonWithoutAGpu) {
  std::unique_ptr<comm::nccl::Api> api;
  try {
    api = comm::nccl::load({});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_GE(api->version(), comm::nccl::kOldestVersion);
  comm::nccl::UniqueId id{};
  EXPECT_EQ(api->unique_id(id).status, comm::nccl::Status::kDone);
  EXPECT_NE(id, comm::nccl::UniqueId{});
  if (!gpu::list_devices().devices.empty()) return;
  comm::nccl::Comm comm;
  const comm::nccl::Result result = api->init_rank(comm, id, {.rank = 0, .size = 1, .max_ctas = 0});
  EXPECT_EQ(result.status, comm::nccl::Status::kFailed);
  EXPECT_EQ(comm.native, nullptr);
  EXPECT_NE(api->explain(result, comm), "");
  EXPECT_EQ(api->comm_abort(comm).status, comm::nccl::Status::kDone) << "a plane aborts whatever it has";
}

TEST(NcclLibrary, AMissingOneIsOneLine) {
  const std::string error = load_error(nccl_in("/nowhere"));
  if (error.starts_with("unsupported: this build has no NCCL")) GTEST_SKIP() << "built without NCCL";
  EXPECT_EQ(error.find("unsupported: NCCL could not be loaded (there is no /nowhere/lib/libnccl.so.2, "), 0U) << error;
  expect_contains(error,
                  "): install NCCL 2.19.3 or newer for this CUDA version, or name its folder in LD_LIBRARY_PATH or "
                  "HVD_NCCL_ROOT");
}

TEST(NcclLibrary, OneThatIsTooOldIsRefusedWithWhatWhereAndWhatToDo) {
  const std::string error = load_error(nccl_in(HVD_OLD_NCCL));
  if (error.starts_with("unsupported: this build has no NCCL")) GTEST_SKIP() << "built without NCCL";
  EXPECT_EQ(error, "unsupported: " HVD_OLD_NCCL
                   "/libnccl.so.2 is NCCL 2.18.6, older than 2.19.3: install NCCL 2.19.3 or newer for this CUDA "
                   "version, or name its folder in LD_LIBRARY_PATH or HVD_NCCL_ROOT");
}

TEST(NcclLibrary, ALibraryThatIsNotNcclIsRefused) {
  const auto root = std::filesystem::path(::testing::TempDir()) / ("not_nccl-" + std::to_string(::getpid()));
  std::filesystem::remove_all(root);
  put_library(root / "lib" / "libnccl.so.2");
  const std::string error = load_error(nccl_in(root));
  std::filesystem::remove_all(root);
  if (error.starts_with("unsupported: this build has no NCCL")) GTEST_SKIP() << "built without NCCL";
  expect_contains(error, "is NCCL 0.0.0, older than 2.19.3 or without a function that it should have");
}

}  // namespace
}  // namespace hvd::test::nccl_test
