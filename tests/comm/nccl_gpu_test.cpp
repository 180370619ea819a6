// Runs the checks of device_checks.h, which also run on the fakes, on real GPUs with the real NCCL. Ranks are threads.
// The test needs one GPU per rank, or one GPU for two ranks with NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1 in the
// environment. On other machines the test is skipped with the reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/device_checks.h"

namespace hvd::test::nccl_gpu_test {
namespace {

using namespace device;

constexpr std::size_t kRanksAtMost = 4;

/// Runs `body` with two ranks or more, or skips the test with the reason.
void on_gpus(const std::function<void(comm::DeviceCommunicator&)>& body) {
  const gpu::DeviceList list = gpu::list_devices();
  if (list.devices.empty()) GTEST_SKIP() << list.reason;
  const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool share_gpus = shared != nullptr && std::string(shared) == "1";
  if (list.devices.size() == 1 && !share_gpus) {
    GTEST_SKIP() << "one GPU, and NCCL_MULTI_RANK_GPU_ENABLE is not 1 (it needs NCCL 2.30)";
  }
  try {
    static_cast<void>(comm::nccl::load({}));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  auto hosts = comm::make_loopback(share_gpus ? 2 : static_cast<int>(std::min(list.devices.size(), kRanksAtMost)));
  std::vector<std::jthread> ranks;
  for (auto& host : hosts) {
    ranks.emplace_back([&body, share_gpus, host = std::move(host)]() mutable {
      const int rank = host->topology().rank;
      try {
        const auto runtime = gpu::make_cuda_runtime(share_gpus ? 0 : rank);
        comm::NcclOptions options;
        options.share_gpus = share_gpus;
        if (share_gpus) options.max_ctas = 4;  // the kernels of both ranks must be on the GPU at the same time
        const auto communicator = comm::make_nccl(std::move(host), *runtime, comm::nccl::load({}), options,
                                                  Deadline::after(std::chrono::seconds(60)));
        body(*communicator);
      } catch (const Error& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

class NcclOnGpus : public ::testing::TestWithParam<DataType> {};

TEST_P(NcclOnGpus, OperationsAreRight) {
  on_gpus([](comm::DeviceCommunicator& communicator) { check_all(communicator, GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Types, NcclOnGpus, ::testing::ValuesIn(kAllTypes));

TEST(NcclOnGpus, OperationsGoIntoAGraph) {
  on_gpus([](comm::DeviceCommunicator& communicator) { check_graph(communicator); });
}

}  // namespace
}  // namespace hvd::test::nccl_gpu_test
