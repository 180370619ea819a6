// Tests DeviceEngine on real GPUs with the real NCCL. Gradients are copies of data on the device, so the test needs no
// kernels of this project.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/device_engine.h"
#include "tests/comm/real_gpus.h"
#include "tests/runtime/ranks.h"

namespace hvd::test::device_engine_gpu_test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 2;

/// Tests tickets whose outputs the engine allocates. Also tests factors if this build has the scaling kernel.
void check_tickets(gpu::GpuRuntime& runtime, std::unique_ptr<comm::DeviceCommunicator> communicator) {
  const int rank = communicator->topology().rank;
  const Deadline deadline = Deadline::after(60s);
  Engine engine(std::move(communicator), patient_options(Schedule::kNegotiated));
  runtime.make_current();
  using Shape = std::vector<std::int64_t>;
  constexpr std::size_t kCount = 6, kBytes = kCount * sizeof(float);
  constexpr auto kF32 = DataType::kF32;
  const gpu::Stream stream = runtime.make_stream(gpu::Priority::kNormal);
  const gpu::DeviceMemory memory = runtime.allocate(2 * kBytes, "tensors");
  const gpu::PinnedMemory staging = runtime.allocate_pinned(2 * kBytes, "tensors");
  auto* const values = reinterpret_cast<float*>(staging->bytes.data());
  std::byte* const in = memory->bytes.data();
  std::byte* const out = in + kBytes;
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(10 * rank) + static_cast<float>(i);
  runtime.copy(in, values, kBytes, stream);
  runtime.synchronize(stream, deadline, "the tensor");
  const auto read = [&](std::span<const std::byte> result) {
    runtime.copy(values, result.data(), result.size(), stream);
    runtime.synchronize(stream, deadline, "the result");
    return std::vector<float>(values, values + result.size() / sizeof(float));
  };
  const Scale scale = runtime.scale_refusal().empty() ? Scale{2, 0.5} : Scale{};
  engine.wait(engine.all_reduce_into_async("sum", out, in, Shape{6}, kF32, ReduceOp::kSum, scale));
  EXPECT_EQ(read({out, kBytes}), (std::vector<float>{10, 12, 14, 16, 18, 20}));
  const Output share =
      engine.take_output(engine.reduce_scatter_async("share", in, Shape{3, 2}, kF32, ReduceOp::kMax, scale));
  EXPECT_EQ(read(share.data()), rank == 0 ? (std::vector<float>{10, 11, 12, 13}) : (std::vector<float>{14, 15}));
  const Output gathered = engine.take_output(engine.all_gather_async("rows", in, Shape{rank + 1}, kF32));
  EXPECT_EQ(read(gathered.data()), (std::vector<float>{0, 10, 11}));
  const Shape splits = rank == 0 ? Shape{1, 2} : Shape{0, 3};
  const Output exchanged = engine.take_output(engine.all_to_all_async("exchange", in, Shape{3}, splits, kF32));
  EXPECT_EQ(read(exchanged.data()), rank == 0 ? (std::vector<float>{0}) : (std::vector<float>{1, 2, 10, 11, 12}));
  EXPECT_EQ(read({in, kBytes}).front(), static_cast<float>(10 * rank));
}

void train(gpu::GpuRuntime& runtime, std::unique_ptr<comm::DeviceCommunicator> communicator, Schedule schedule) {
  const int rank = communicator->topology().rank;
  const Deadline deadline = Deadline::after(60s);
  EngineOptions options = patient_options(schedule);
  options.buckets = {.bucket_bytes = 600, .first_bucket_bytes = 200};
  DeviceEngine engine(std::move(communicator), options, {});
  runtime.make_current();

  const auto gradients = make_gradients(12);
  const std::size_t elements = arena_elements(gradients);
  const std::span<std::byte> arena = engine.engine().allocate(elements * sizeof(float));
  const gpu::Stream stream = runtime.make_stream(gpu::Priority::kNormal);
  const gpu::DeviceMemory source = runtime.allocate(arena.size(), "this rank's gradients");
  const gpu::PinnedMemory host_copy = runtime.allocate_pinned(arena.size(), "gradients");
  auto* const values = reinterpret_cast<float*>(host_copy->bytes.data());
  for (std::size_t i = 0; i < elements; ++i) values[i] = contribution(rank, 0, i);
  runtime.copy(source->bytes.data(), values, arena.size(), stream);
  runtime.synchronize(stream, deadline, "the gradients");
  engine.set_gradients(gradients, arena.data(), DataType::kF32, ReduceOp::kSum);

  const DeviceEngine::Work work{[&] {
                                  for (std::size_t i = 0; i < gradients.size(); ++i) {
                                    const std::size_t offset = gradients[i].offset * sizeof(float);
                                    runtime.copy(arena.data() + offset, source->bytes.data() + offset,
                                                 gradients[i].count * sizeof(float), stream);
                                    engine.gradient_ready(i);
                                  }
                                },
                                [&] { runtime.copy(values, arena.data(), arena.size(), stream); }};
  for (int step = 0; step < 5; ++step) {
    std::memset(values, 0, arena.size());
    engine.run_step(stream, work);
    const DeviceReport report = engine.finish_step();
    EXPECT_EQ(report.graph, schedule == Schedule::kStatic && step >= 2);
    for (const core::GradientInfo& gradient : gradients) {
      for (std::size_t k = gradient.offset; k < gradient.offset + gradient.count; ++k) {
        ASSERT_EQ(values[k], expected_sum(kRanks, 0, k)) << "element " << k << ", step " << step << ", rank " << rank;
      }
    }
  }
}

// Each step rotates a ring of numbers by one place. It then copies the ring's first number to the step's slot on the
// host. The numbers in the slots show if a step overtook another step, was lost, or shared its slot with a step in
// flight.
TEST(DeviceEngineOnAGpu, StepsLaunchedAheadComeInOrder) {
  const gpu::DeviceList list = gpu::list_devices();
  if (list.devices.empty()) GTEST_SKIP() << list.reason;
  const auto runtime = gpu::make_cuda_runtime(0);
  const Deadline deadline = Deadline::after(60s);
  auto alone = comm::make_loopback(1);
  DeviceEngine engine(comm::make_nccl(std::move(alone[0]), *runtime, nullptr, {}, deadline),
                      patient_options(Schedule::kStatic), {});
  runtime->make_current();
  constexpr std::size_t kNumbers = 7, kSteps = 40;
  constexpr std::size_t kBytes = sizeof(float);
  const gpu::Stream stream = runtime->make_stream(gpu::Priority::kNormal);
  const std::span<std::byte> arena = engine.engine().allocate(kBytes);
  engine.set_gradients({{"ring", 0, 1}}, arena.data(), DataType::kF32, ReduceOp::kSum);
  const gpu::DeviceMemory ring = runtime->allocate((kNumbers + 1) * kBytes, "the ring, and one place");
  const gpu::PinnedMemory host =
      runtime->allocate_pinned((kNumbers + kStepsInFlight) * kBytes, "the ring, and a place a slot");
  auto* const values = reinterpret_cast<float*>(host->bytes.data());
  for (std::size_t i = 0; i < kNumbers; ++i) values[i] = static_cast<float>(i);
  runtime->copy(ring->bytes.data(), values, kNumbers * kBytes, stream);
  const auto place = [&](std::size_t i) { return ring->bytes.data() + i * kBytes; };
  const DeviceEngine::Work work{[&] {
                                  runtime->copy(place(kNumbers), place(0), kBytes, stream);
                                  for (std::size_t i = 0; i < kNumbers; ++i) {
                                    runtime->copy(place(i), place(i + 1), kBytes, stream);
                                  }
                                  engine.gradient_ready(0);
                                },
                                [&] { runtime->copy(values + kNumbers + engine.slot(), place(0), kBytes, stream); }};
  std::size_t ahead = 0;
  for (std::size_t launched = 0, finished = 0; finished < kSteps;) {
    if (launched < kSteps && (engine.in_flight() == 0 || engine.may_run_ahead())) {
      engine.run_step(stream, work);
      ++launched;
      continue;
    }
    const DeviceReport report = engine.finish_step();
    ahead += report.ahead ? 1U : 0U;
    ++finished;
    EXPECT_GT(report.step.count(), 0);
    EXPECT_EQ(values[kNumbers + report.slot], static_cast<float>(finished % kNumbers)) << "step " << finished;
  }
  EXPECT_EQ(ahead, kSteps - 3);  // all except two eager steps and the captured step
}

TEST(DeviceTicketsOnGpus, AreOfDeviceMemory) { on_gpus(kRanks, check_tickets); }

class DeviceEngineOnGpus : public ::testing::TestWithParam<Schedule> {};

TEST_P(DeviceEngineOnGpus, ReducesEagerAndCaptured) {
  on_gpus(kRanks,
          [](gpu::GpuRuntime& runtime, auto communicator) { train(runtime, std::move(communicator), GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Schedules, DeviceEngineOnGpus, ::testing::Values(Schedule::kStatic, Schedule::kNegotiated));

}  // namespace
}  // namespace hvd::test::device_engine_gpu_test
