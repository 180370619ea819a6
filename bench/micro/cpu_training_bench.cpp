#include <chrono>
#include <span>
#include <utility>

#include "bench/micro/training_bench.h"
#include "models/graph/autodiff.h"
#include "models/graph/cost.h"

namespace hvd::bench {
namespace {

using namespace hvd::models;
using Clock = std::chrono::steady_clock;

class CpuBench final : public TrainingBench {
 public:
  explicit CpuBench(const TrainingOptions& options) : arena_(make_heap_arena()), input_(options.model) {
    step_ = make_onednn_step(std::move(input_.graph),
                             {.compute = *parse_data_type(options.dtype),
                              .threads = options.threads,
                              .seed = 1,
                              .profile = options.profile,
                              .winograd = options.winograd},
                             arena_.allocate);
    steps(1);
  }

  std::vector<double> steps(int count) override {
    std::vector<double> seconds;
    seconds.reserve(static_cast<std::size_t>(count));
    input_.generate(count);
    for (int i = 0; i < count; ++i) seconds.push_back(step(input_.batch(i)));
    return seconds;
  }
  [[nodiscard]] double loss() const override { return loss_; }
  [[nodiscard]] const TrainStep& train_step() const override { return *step_; }
  [[nodiscard]] double flops_per_image() const override { return input_.flops_per_image; }

 private:
  double step(const Batch& batch) {
    const auto start = Clock::now();
    loss_ = step_->forward_backward(batch, sink_);
    step_->update(kBenchSgd);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  HeapArena arena_;
  TrainingInput input_;
  std::unique_ptr<TrainStep> step_;
  NoSink sink_;
  double loss_ = 0;
};

}  // namespace

TrainingInput::TrainingInput(const ModelSpec& model)
    : graph(differentiate(build_model(model))),
      flops_per_image(step_flops_per_image(graph)),
      batch_size_(static_cast<std::size_t>(graph.batch_size)),
      labels_(batch_size_) {
  const Shape& shape = graph.tensor(graph.images).shape;
  spec_ = {.seed = 1, .image_elements = shape.count() / shape[0], .classes = graph.classes};
  images_.resize(static_cast<std::size_t>(shape.count()));
  synthetic_batch(spec_, 0, images_, labels_);
}

void TrainingInput::generate(int count) {
  first_ = end_;
  end_ += static_cast<std::uint64_t>(count);
  labels_.resize(batch_size_ * static_cast<std::size_t>(count));
  for (std::uint64_t step = first_; step < end_; ++step) {
    const std::span<std::int32_t> labels = std::span(labels_).subspan((step - first_) * batch_size_, batch_size_);
    synthetic_labels(spec_, step * batch_size_, labels);
  }
}

Batch TrainingInput::batch(int i) const {
  const std::uint64_t step = first_ + static_cast<std::uint64_t>(i);
  return {.images = images_,
          .labels = std::span(labels_).subspan(static_cast<std::size_t>(i) * batch_size_, batch_size_),
          .first_sample = step * batch_size_,
          .step = step,
          .content = 1};
}

std::unique_ptr<TrainingBench> make_cpu_bench(const TrainingOptions& options) {
  return std::make_unique<CpuBench>(options);
}

}  // namespace hvd::bench
