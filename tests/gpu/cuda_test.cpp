// Tests the GpuRuntime over CUDA. Without a GPU the runtime must report that there is no GPU. On a GPU the runtime must
// behave like the fake GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/base/scale.h"
#include "engine/gpu/runtime.h"
#include "tests/base/elements.h"
#include "tests/base/errors.h"

namespace hvd::cuda_test {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(30s); }

TEST(CudaRuntime, WithoutAGpuSaysWhy) {
  const gpu::DeviceList list = gpu::list_devices();
  if (!list.devices.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(test::error_of([] { return gpu::make_cuda_runtime(0); }),
            "unsupported: no GPU can be used: " + list.reason);
}

TEST(DeviceList, NamesADriverThatIsTooOld) {
  EXPECT_EQ(gpu::no_device_reason(0, 13000, "insufficient"),
            "no NVIDIA driver is loaded (CUDA 13.0 needs one; a container gets the host's by --gpus all or --nv)");
  EXPECT_EQ(gpu::no_device_reason(12040, 13000, "insufficient"),
            "the NVIDIA driver supports CUDA 12.4, but this program needs 13.0: install a newer driver, or a program "
            "built with "
            "an older CUDA");
  EXPECT_EQ(gpu::no_device_reason(13000, 13010, "in exclusive use"), "in exclusive use");  // same major version: usable
}

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const gpu::DeviceList list = gpu::list_devices();
    if (list.devices.empty()) GTEST_SKIP() << list.reason;
    runtime_ = gpu::make_cuda_runtime(0);
  }
  std::unique_ptr<gpu::GpuRuntime> runtime_;
};

TEST_F(OnGpu, ScalesWithTheBitsOfTheHost) {
  if (const std::string why = runtime_->scale_refusal(); !why.empty()) GTEST_SKIP() << why;
  constexpr std::size_t kCount = 100001;
  const auto stream = runtime_->make_stream(gpu::Priority::kNormal);
  const auto device = runtime_->allocate(kCount * sizeof(double), "elements");
  const auto host = runtime_->allocate_pinned(kCount * sizeof(double), "elements");
  std::byte* const data = host->bytes.data();
  for (const DataType type : {DataType::kF32, DataType::kF64, DataType::kF16, DataType::kBF16}) {
    const std::size_t bytes = kCount * size_of(type);
    std::vector<std::byte> expected(bytes);
    for (std::size_t i = 0; i < kCount; ++i) {
      test::store_element(&expected[i * size_of(type)], 1.0 / static_cast<double>(i + 1) - 0.01, type);
    }
    std::memcpy(data, expected.data(), bytes);
    runtime_->copy(device->bytes.data(), data, bytes, stream);
    runtime_->scale(device->bytes.data(), kCount, type, 1.0 / 3, stream);
    runtime_->copy(data, device->bytes.data(), bytes, stream);
    runtime_->synchronize(stream.view(), soon(), "scaling");
    scale(expected.data(), kCount, type, 1.0 / 3);
    EXPECT_EQ(std::memcmp(data, expected.data(), bytes), 0) << name(type);
  }
}

TEST_F(OnGpu, TimersWaitInGraphsToo) {
  if (const std::string why = runtime_->scale_refusal(); !why.empty()) GTEST_SKIP() << why;
  const auto stream = runtime_->make_stream(gpu::Priority::kNormal);
  const auto begin = runtime_->make_event(gpu::Timing::kOn);
  const auto end = runtime_->make_event(gpu::Timing::kOn);
  const auto device = runtime_->allocate(sizeof(gpu::DeviceTimer), "a timer");
  const auto host = runtime_->allocate_pinned(sizeof(double), "a factor");
  auto* const timer = reinterpret_cast<gpu::DeviceTimer*>(device->bytes.data());
  const auto measured = [&](double factor, const std::function<void()>& work) {
    std::memcpy(host->bytes.data(), &factor, sizeof factor);
    runtime_->copy(&timer->factor, host->bytes.data(), sizeof factor, stream);
    runtime_->record_outside(begin, stream);
    work();
    runtime_->record_outside(end, stream);
    runtime_->synchronize(end.view(), soon(), "a timer");
    return runtime_->elapsed(begin, end);
  };
  const auto enqueue = [&] {
    runtime_->start_timer(timer, stream);
    runtime_->await_timer(timer, 1ms, stream);
    runtime_->await_timer(timer, 4ms, stream);
  };
  EXPECT_GE(measured(1, enqueue), 3900us) << "by the events; the GPU's clock may tick rarely";
  gpu::Capture capture(*runtime_, stream);
  enqueue();
  const gpu::Graph graph = capture.finish();
  for (const double factor : {1.0, 2.5}) {
    EXPECT_GE(measured(factor, [&] { runtime_->launch(graph, stream); }), factor * 3900us) << factor;
  }
  const auto bounded = [&] {
    runtime_->start_timer(timer, stream);
    runtime_->await_timer(timer, 24h, stream);
  };
  EXPECT_GE(measured(1, bounded), 490ms) << "and it ends";
}

TEST_F(OnGpu, CopiesThroughAGraphWithAFork) {
  constexpr std::size_t kBytes = 1 << 20;
  const auto compute = runtime_->make_stream(gpu::Priority::kNormal);
  const auto side = runtime_->make_stream(gpu::Priority::kHigh);
  const auto fork = runtime_->make_event(gpu::Timing::kOff);
  const auto join = runtime_->make_event(gpu::Timing::kOff);
  const auto begin = runtime_->make_event(gpu::Timing::kOn);
  const auto end = runtime_->make_event(gpu::Timing::kOn);
  const auto device = runtime_->allocate(2 * kBytes, "two halves");
  const auto host = runtime_->allocate_pinned(2 * kBytes, "two halves");
  std::byte* const halves = device->bytes.data();
  gpu::Capture capture(*runtime_, compute);
  runtime_->record_outside(begin, compute);
  runtime_->fill(halves, std::byte{7}, kBytes, compute);
  runtime_->record(fork, compute);
  runtime_->wait(side, fork);
  runtime_->copy(halves + kBytes, halves, kBytes, side);
  runtime_->record(join, side);
  runtime_->wait(compute, join);
  runtime_->copy(host->bytes.data(), halves, 2 * kBytes, compute);
  runtime_->record_outside(end, compute);
  const gpu::Graph graph = capture.finish();
  std::memset(host->bytes.data(), 0, 2 * kBytes);
  runtime_->launch(graph, compute);
  runtime_->synchronize(end.view(), soon(), "the graph");
  EXPECT_EQ(std::vector<std::byte>(host->bytes.begin(), host->bytes.end()),
            std::vector<std::byte>(2 * kBytes, std::byte{7}));
  EXPECT_GT(runtime_->elapsed(begin, end).count(), 0);
}

TEST_F(OnGpu, SaysWhatAGraphHolds) {
  const auto stream = runtime_->make_stream(gpu::Priority::kNormal);
  const auto end = runtime_->make_event(gpu::Timing::kOn);
  const auto device = runtime_->allocate(64, "a");
  const auto host = runtime_->allocate_pinned(64, "a");
  gpu::Capture capture(*runtime_, stream);
  runtime_->fill(device->bytes.data(), std::byte{7}, 64, stream);
  runtime_->copy(host->bytes.data(), device->bytes.data(), 64, stream);
  runtime_->record_outside(end, stream);
  const gpu::Graph graph = capture.finish();
  const std::optional<gpu::GraphShape> shape = runtime_->shape(graph);
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->text(), "one graph of 3 nodes in a row: 1 copy, 1 fill, 1 event");
}

TEST_F(OnGpu, AMissingJoinIsRefused) {
  const auto compute = runtime_->make_stream(gpu::Priority::kNormal);
  const auto side = runtime_->make_stream(gpu::Priority::kNormal);
  const auto fork = runtime_->make_event(gpu::Timing::kOff);
  const auto memory = runtime_->allocate(64, "a");
  gpu::Capture capture(*runtime_, compute);
  runtime_->record(fork, compute);
  runtime_->wait(side, fork);
  runtime_->fill(memory->bytes.data(), std::byte{1}, 64, side);
  EXPECT_THROW((void)capture.finish(), Error);
}

TEST_F(OnGpu, TooMuchMemorySaysHowMuch) {
  const gpu::MemoryState state = runtime_->memory();
  test::expect_error(Errc::kOutOfMemory, "for the moon: " + std::to_string(state.total_bytes >> 19U) + " MiB",
                     [&] { return runtime_->allocate(2 * state.total_bytes, "the moon"); });
}

}  // namespace
}  // namespace hvd::cuda_test
