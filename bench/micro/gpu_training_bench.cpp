#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "bench/micro/training_bench.h"
#include "engine/base/error.h"
#include "models/cudnn/run/cudnn_step.h"

namespace hvd::bench {
namespace {

using namespace hvd::models;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Deadline of one call of steps(). It is meant to detect a hang, not a slow GPU.
constexpr auto kLongest = 600s;
// Steps that run before the graph is captured: cuDNN and cuBLASLt load code at the first use, which a capture forbids.
constexpr int kEagerSteps = 2;

StepOptions step_options(const TrainingOptions& options) {
  const bool tf32 = options.dtype == "tf32";
  const DataType compute = tf32 ? DataType::kF32 : *parse_data_type(options.dtype);
  const int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return {.compute = compute, .gradient = compute, .threads = threads, .seed = 1, .profile = options.profile};
}

cudnn::ImageLayout images(const std::string& name) {
  return name == "padded" ? cudnn::ImageLayout::kPadded : cudnn::ImageLayout::kColumns;
}

class GpuBench final : public TrainingBench {
 public:
  explicit GpuBench(const TrainingOptions& options) : runtime_(gpu::make_cuda_runtime(0)), input_(options.model) {
    const CudnnOptions cudnn{.tf32 = options.dtype == "tf32",
                             .fusion = {.level = options.fusion_level, .images = images(options.images)},
                             .other_fusions = options.other_fusions,
                             .tune = options.tune,
                             .winners_folder = options.winners_folder};
    step_ = make_cudnn_step(std::move(input_.graph), step_options(options), cudnn, *runtime_,
                            [this](std::size_t bytes) { return zeroed(bytes); });
    step_->set_sgd(kBenchSgd);
    steps(kEagerSteps);
    if (options.profile) return;
    gpu::Capture capture(*runtime_, step_->compute_stream());
    enqueue();
    graph_ = capture.finish();
    steps(1);
  }

  std::vector<double> steps(int count) override {
    input_.generate(count);
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      // The images are on the GPU already. Between two steps only the labels and two numbers (step,
      // first sample) are copied, from pinned memory.
      step_->load(input_.batch(i), Deadline::after(kLongest));
      if (graph_) {
        runtime_->launch(graph_, step_->compute_stream());
      } else {
        enqueue();
      }
    }
    finish("the steps");
    return {std::chrono::duration<double>(Clock::now() - start).count() / count};
  }
  [[nodiscard]] double loss() const override { return step_->loss(0); }
  [[nodiscard]] const TrainStep& train_step() const override { return *step_; }
  [[nodiscard]] double flops_per_image() const override { return input_.flops_per_image; }
  [[nodiscard]] std::vector<std::string> notes() const override {
    std::vector<std::string> notes = step_->notes();
    const auto shape = graph_ ? runtime_->shape(graph_) : std::nullopt;
    if (shape) notes.push_back("a step is " + shape->text());
    return notes;
  }

 private:
  void enqueue() {
    step_->enqueue_forward_backward(sink_);
    step_->enqueue_update();
  }
  void finish(std::string_view what) {
    runtime_->synchronize(step_->compute_stream(), Deadline::after(kLongest), what);
  }
  std::span<std::byte> zeroed(std::size_t bytes) {
    gradients_ = runtime_->allocate(bytes, "the gradients");
    const gpu::Stream stream = runtime_->make_stream(gpu::Priority::kNormal);
    runtime_->fill(gradients_->bytes.data(), std::byte{0}, bytes, stream);
    runtime_->synchronize(stream.view(), Deadline::after(kLongest), "zeroes for the gradients");
    return gradients_->bytes;
  }

  const std::unique_ptr<gpu::GpuRuntime> runtime_;
  TrainingInput input_;
  gpu::DeviceMemory gradients_;
  std::unique_ptr<DeviceStep> step_;
  gpu::Graph graph_;  // destroyed before the objects that it uses
  NoSink sink_;
};

}  // namespace

std::unique_ptr<TrainingBench> make_gpu_bench(const TrainingOptions& options) {
  return std::make_unique<GpuBench>(options);
}

}  // namespace hvd::bench
