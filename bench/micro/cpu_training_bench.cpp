#include <chrono>
#include <utility>

#include "bench/micro/training_bench.h"
#include "models/graph/autodiff.h"
#include "models/graph/cost.h"
#include "models/synthetic.h"

namespace hvd::bench {
namespace {

using namespace hvd::models;
using Clock = std::chrono::steady_clock;

class CpuBench final : public TrainingBench {
 public:
  explicit CpuBench(const TrainingOptions& options) : arena_(make_heap_arena()), input_(options.model) {
    const std::string& gradient = options.gradient_dtype.empty() ? "fp32" : options.gradient_dtype;
    step_ = make_onednn_step(std::move(input_.graph),
                             {.compute = *parse_data_type(options.dtype),
                              .gradient = *parse_data_type(gradient),
                              .threads = options.threads,
                              .seed = 1,
                              .profile = options.profile},
                             arena_.allocate);
    step();
  }

  std::vector<double> steps(int count) override {
    std::vector<double> seconds;
    seconds.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) seconds.push_back(step());
    return seconds;
  }
  [[nodiscard]] double loss() const override { return loss_; }
  [[nodiscard]] const TrainStep& train_step() const override { return *step_; }
  [[nodiscard]] double flops_per_image() const override { return input_.flops_per_image; }

 private:
  double step() {
    const auto start = Clock::now();
    loss_ = step_->forward_backward(
        {.images = input_.images, .labels = input_.labels, .first_sample = 0, .step = steps_++}, sink_);
    step_->update(kBenchSgd);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  HeapArena arena_;
  TrainingInput input_;
  std::unique_ptr<TrainStep> step_;
  NoSink sink_;
  double loss_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace

TrainingInput::TrainingInput(const ModelSpec& model) : graph(differentiate(build_model(model))) {
  const Shape shape = graph.tensor(graph.images).shape;
  images.resize(static_cast<std::size_t>(shape.count()));
  labels.resize(static_cast<std::size_t>(graph.batch_size));
  synthetic_batch({.seed = 1, .image_elements = shape.count() / shape[0], .classes = graph.classes}, 0, images, labels);
  flops_per_image = step_flops_per_image(graph);
}

std::unique_ptr<TrainingBench> make_cpu_bench(const TrainingOptions& options) {
  return std::make_unique<CpuBench>(options);
}

}  // namespace hvd::bench
