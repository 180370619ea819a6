// Runs training steps and times them. On a GPU, each step is one launch of a captured graph. The images stay in memory.
// Labels are new in every step: otherwise the network would memorise its batch, and gradients would vanish. Labels are
// generated before the clock starts. Used by one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/random.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"

namespace hvd::bench {

struct TrainingOptions {
  models::ModelSpec model{
      .model = "resnet101", .batch_size = 8, .image_size = 0, .classes = 1000, .auxiliary_head = false};
  std::string dtype = "fp32";      ///< fp32 or bf16; on a GPU also fp16 or tf32
  int threads = 1;                 ///< CPU only; on a GPU, one thread per processor compiles kernels
  bool profile = false;            ///< time every operation; on a GPU, steps then run without a graph
  int fusion_level = 2;            ///< GPU: see models/cudnn/lowering/lowering.h
  std::string images = "columns";  ///< GPU: how the first convolution reads the images (cudnn::ImageLayout)
  bool other_fusions = false;      ///< GPU: with `tune`, also time whole steps fused in other ways
  bool winograd = true;            ///< CPU: see models::StepOptions
  bool tune = true;                ///< GPU: before the first step, time the best engines of each operation
  std::string winners_folder;      ///< GPU: folder that keeps the fastest engines; empty: none are kept
};

class TrainingBench {
 public:
  virtual ~TrainingBench() = default;
  /// Runs `count` steps of forward, backward and update. Returns the seconds of each step; a GPU bench returns only
  /// their mean, timed from an idle GPU to an idle GPU.
  virtual std::vector<double> steps(int count) = 0;
  [[nodiscard]] virtual double loss() const = 0;
  [[nodiscard]] virtual const models::TrainStep& train_step() const = 0;
  [[nodiscard]] virtual double flops_per_image() const = 0;
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
};

/// Errors of make_cpu_bench() and make_gpu_bench(): out_of_memory; unsupported if the type or device is not available.
/// The returned bench is warm: its memory has been touched and all its operations have run once.
std::unique_ptr<TrainingBench> make_cpu_bench(const TrainingOptions& options);
std::unique_ptr<TrainingBench> make_gpu_bench(const TrainingOptions& options);

/// The input of the CPU bench and the GPU bench: a differentiated graph, and batches of synthetic data. The images are
/// the same in all batches.
class TrainingInput {
 public:
  explicit TrainingInput(const models::ModelSpec& model);

  /// Generates the batches of the next `count` steps. Invalidates the batches of earlier calls.
  void generate(int count);
  /// Returns batch `i` of the last generate().
  [[nodiscard]] models::Batch batch(int i) const;

  models::Graph graph;
  double flops_per_image = 0;

 private:
  models::SyntheticSpec spec_;
  std::size_t batch_size_;
  std::vector<float> images_;
  std::vector<std::int32_t> labels_;   // of all generated batches, one after another
  std::uint64_t first_ = 0, end_ = 0;  // range of steps that have generated batches
};

inline constexpr models::SgdOptions kBenchSgd{
    .learning_rate = 1e-3, .momentum = 0.9, .weight_decay = 1e-4, .gradient_scale = 1.0};

class NoSink final : public models::GradientSink {
 public:
  void gradient_ready(std::size_t /*parameter*/) override {}
};

}  // namespace hvd::bench
