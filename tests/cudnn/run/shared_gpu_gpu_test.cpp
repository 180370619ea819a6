// Tests with the cuDNN executor that two ranks take the same steps as one rank with twice the batch. The ranks are two
// processes on one GPU. Their gradients are averaged through CUDA IPC, because NCCL before 2.30 refuses two ranks on
// one GPU. Label gpu. Without a GPU the test is skipped with the reason.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "models/cudnn/run/cudnn_step.h"
#include "tests/comm/two_processes.h"
#include "tests/cudnn/run/two_halves.h"
#include "tests/models/small_graphs.h"

namespace hvd::models::testing::shared_gpu_gpu_test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kSkip = "skip: ";
constexpr std::int64_t kHalfBatch = 8;

struct Type {
  std::string name;
  DataType compute;
  bool tf32;
  double rounding;
};

/// Runs in the process of rank `rank`. Returns the differences, or kSkip and the reason. Empty if there is no
/// difference.
std::string train(int rank, const test::Exchange& exchange, const Type& type) {
  const gpu::DeviceList list = gpu::list_devices();
  if (list.devices.empty()) return kSkip + ("no GPU: " + list.reason);
  if (const std::string why = cudnn_unsupported_reason(); !why.empty()) return kSkip + why;
  const auto runtime = gpu::make_cuda_runtime(0);
  const auto peers = test::make_cuda_ipc(*runtime);
  test::SharedGpu shared({.rank = rank, .size = 2}, *runtime, *peers, exchange);
  const StepMaker make = [&](Graph graph, const ArenaAllocator& allocate) {
    return make_cudnn_step(std::move(graph), {.compute = type.compute, .gradient = DataType::kF32, .seed = 5},
                           {.tf32 = type.tf32, .deterministic = true, .loss_scale = 128}, *runtime, allocate);
  };
  // This tolerance is similar to the bounds for fp32 in rounding_model.cpp: each layer is off by 16 roundings, and the
  // error of a step grows as the root of the number of nodes. One parameter's gradient may be off by four times as
  // much.
  const auto nodes = static_cast<double>(tiny_vgg(kHalfBatch).nodes.size());
  return compare_halves_with_whole(rank, *runtime, shared, make, tiny_vgg, kHalfBatch,
                                   64 * std::sqrt(nodes) * type.rounding);
}

class SharedGpuOnGpu : public ::testing::TestWithParam<Type> {};

TEST_P(SharedGpuOnGpu, TwoRanksEqualOneAtTwiceTheBatch) {
  const auto outcomes = test::run_two_processes(
      [](int rank, const test::Exchange& exchange) { return train(rank, exchange, GetParam()); }, 240s);
  if (outcomes[0].starts_with(kSkip)) GTEST_SKIP() << outcomes[0].substr(std::string(kSkip).size());
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(outcomes[rank], "") << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Types, SharedGpuOnGpu,
                         ::testing::Values(Type{"fp32", DataType::kF32, false, 0x1.0p-24},
                                           Type{"tf32", DataType::kF32, true, 0x1.0p-11},
                                           Type{"fp16", DataType::kF16, false, 0x1.0p-11},
                                           Type{"bf16", DataType::kBF16, false, 0x1.0p-8}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace hvd::models::testing::shared_gpu_gpu_test
