// Runs the checks of device_checks.h, which also run on the fakes, on real GPUs with the real NCCL.
#include <gtest/gtest.h>

#include "tests/comm/device_checks.h"
#include "tests/comm/real_gpus.h"

namespace hvd::test::nccl_gpu_test {
namespace {

using namespace device;

constexpr std::size_t kRanksAtMost = 4;

class NcclOnGpus : public ::testing::TestWithParam<DataType> {};

TEST_P(NcclOnGpus, OperationsAreRight) {
  on_gpus(kRanksAtMost, [](gpu::GpuRuntime&, auto communicator) { check_all(*communicator, GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Types, NcclOnGpus, ::testing::ValuesIn(kAllTypes));

TEST(NcclOnGpus, OperationsGoIntoAGraph) {
  on_gpus(kRanksAtMost, [](gpu::GpuRuntime&, auto communicator) { check_graph(*communicator); });
}

}  // namespace
}  // namespace hvd::test::nccl_gpu_test
