// Runs ranks as threads on real GPUs with the real NCCL. This needs one GPU per rank, or one GPU for two ranks with
// NCCL 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/device_communicator.h"
#include "tests/base/errors.h"
#include "tests/base/threads.h"

namespace hvd::test {

/// Runs `body` on two to `most` ranks, or skips the test with the reason.
inline void on_gpus(std::size_t most,
                    const std::function<void(gpu::GpuRuntime&, std::unique_ptr<comm::DeviceCommunicator>)>& body) {
  const gpu::DeviceList list = gpu::list_devices();
  if (list.devices.empty()) GTEST_SKIP() << list.reason;
  const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool share_gpus = shared != nullptr && std::string(shared) == "1";
  if (list.devices.size() == 1 && !share_gpus) {
    GTEST_SKIP() << "one GPU, and NCCL_MULTI_RANK_GPU_ENABLE is not 1 (it needs NCCL 2.30)";
  }
  if (const std::string why = error_of([] { return comm::nccl::load({}); }); !why.empty()) GTEST_SKIP() << why;
  auto hosts = comm::make_loopback(share_gpus ? 2 : static_cast<int>(std::min(list.devices.size(), most)));
  on_threads(hosts.size(), [&](std::size_t rank) {
    const std::string error = error_of([&] {
      const auto runtime = gpu::make_cuda_runtime(share_gpus ? 0 : static_cast<int>(rank));
      comm::NcclOptions options;
      options.share_gpus = share_gpus;
      if (share_gpus) options.max_ctas = 4;  // the kernels of both ranks must be on the GPU at the same time
      body(*runtime, comm::make_nccl(std::move(hosts[rank]), *runtime, comm::nccl::load({}), options,
                                     Deadline::after(std::chrono::seconds(60))));
    });
    EXPECT_EQ(error, "") << "rank " << rank;
  });
}

}  // namespace hvd::test
