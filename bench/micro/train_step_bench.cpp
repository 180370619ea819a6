// Times single training steps of the oneDNN backend, without communication: what the peer comparison in
// scripts/peers measures against, and where a step's time goes (--profile).
//
// With --serve it reads lines "<steps>" from standard input and answers each with one line of the steps'
// seconds, so that a script can interleave it with another system without paying for start-up.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "engine/base/error.h"
#include "models/graph/autodiff.h"
#include "models/graph/cost.h"
#include "models/synthetic.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"

namespace {

using namespace hvd;
using namespace hvd::models;
using Clock = std::chrono::steady_clock;

struct Options {
  ModelSpec model{.model = "resnet101", .batch_size = 8, .image_size = 0, .classes = 1000, .auxiliary_head = false};
  std::string dtype = "fp32";
  std::string gradient_dtype = "fp32";
  int threads = 1;
  int steps = 3;
  bool profile = false;
  bool serve = false;
};

class NoSink final : public GradientSink {
 public:
  void gradient_ready(std::size_t /*parameter*/) override {}
};

class Bench {
 public:
  explicit Bench(const Options& options) : arena_(make_heap_arena()) {
    Graph graph = differentiate(build_model(options.model));
    const Shape images = graph.tensor(graph.images).shape;
    images_.resize(static_cast<std::size_t>(images.count()));
    labels_.resize(static_cast<std::size_t>(graph.batch_size));
    synthetic_batch({.seed = 1, .image_elements = images.count() / images[0], .classes = graph.classes}, 0, images_,
                    labels_);
    flops_per_image_ = step_flops_per_image(graph);
    step_ = make_onednn_step(std::move(graph),
                             {.compute = *parse_data_type(options.dtype),
                              .gradient = *parse_data_type(options.gradient_dtype),
                              .threads = options.threads,
                              .seed = 1,
                              .profile = options.profile},
                             arena_.allocate);
  }

  /// Seconds of one step: forward, backward and update.
  double step() {
    const auto start = Clock::now();
    loss_ = step_->forward_backward({.images = images_, .labels = labels_, .first_sample = 0, .step = steps_++}, sink_);
    step_->update({.learning_rate = 1e-3, .momentum = 0.9, .weight_decay = 1e-4, .gradient_scale = 1.0});
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  [[nodiscard]] double loss() const { return loss_; }
  [[nodiscard]] double flops_per_image() const { return flops_per_image_; }
  [[nodiscard]] const TrainStep& train_step() const { return *step_; }

 private:
  HeapArena arena_;
  std::vector<float> images_;
  std::vector<std::int32_t> labels_;
  std::unique_ptr<TrainStep> step_;
  NoSink sink_;
  double flops_per_image_ = 0, loss_ = 0;
  std::uint64_t steps_ = 0;
};

void print_profile(const TrainStep& step) {
  struct Total {
    double seconds = 0, flops = 0, bytes = 0;
    int operations = 0;
  };
  std::map<std::string, Total> by_kind;
  double all = 0, library = 0;
  std::vector<OperationProfile> operations = step.profile();
  for (const OperationProfile& operation : operations) {
    Total& total = by_kind[operation.kind + (operation.library ? "" : " *")];
    total.seconds += operation.seconds;
    total.flops += operation.flops;
    total.bytes += operation.bytes;
    ++total.operations;
    all += operation.seconds;
    if (operation.library) library += operation.seconds;
  }
  std::vector<std::pair<std::string, Total>> sorted(by_kind.begin(), by_kind.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::printf("\n%-36s %5s %9s %6s %9s %7s\n", "kind (* not the library's)", "ops", "ms", "%", "GFLOP/s", "GB/s");
  for (const auto& [kind, total] : sorted) {
    std::printf("%-36s %5d %9.2f %6.2f %9.1f %7.2f\n", kind.c_str(), total.operations, total.seconds * 1e3,
                100 * total.seconds / all, total.flops / total.seconds * 1e-9, total.bytes / total.seconds * 1e-9);
  }
  std::sort(operations.begin(), operations.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  std::printf("\n%-58s %-30s %9s %9s %7s\n", "slowest operations", "implementation", "ms", "GFLOP/s", "GB/s");
  for (std::size_t i = 0; i < std::min<std::size_t>(30, operations.size()); ++i) {
    const OperationProfile& o = operations[i];
    std::printf("%-58s %-30s %9.2f %9.1f %7.2f\n", (o.kind + " " + o.node).substr(0, 58).c_str(),
                o.implementation.substr(0, 30).c_str(), o.seconds * 1e3, o.flops / o.seconds * 1e-9,
                o.bytes / o.seconds * 1e-9);
  }
  std::printf("\ninside the library's compute primitives: %.1f %% of %.1f ms\n", 100 * library / all, all * 1e3);
}

int run(const Options& options) {
  Bench bench(options);
  const MemoryReport memory = bench.train_step().memory();
  bench.step();  // first touch of the arenas, first use of the code
  if (options.serve) {
    std::printf("ready %s\n", bench.train_step().description().c_str());
    std::fflush(stdout);
    for (int steps = 0; std::cin >> steps;) {
      for (int i = 0; i < steps; ++i) std::printf("%.6f ", bench.step());
      std::printf("\n");
      std::fflush(stdout);
    }
    return 0;
  }
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(options.steps));
  for (int i = 0; i < options.steps; ++i) seconds.push_back(bench.step());
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto batch = static_cast<double>(options.model.batch_size);
  std::printf(
      "%s batch %lld %s, %d threads, %s: %.3f img/s (median of %zu steps, best %.3f), %.1f GFLOP/s, loss %.4f\n",
      options.model.model.c_str(), static_cast<long long>(options.model.batch_size), options.dtype.c_str(),
      options.threads, bench.train_step().description().c_str(), batch / median, seconds.size(), batch / seconds[0],
      batch * bench.flops_per_image() / median * 1e-9, bench.loss());
  constexpr double kMiB = 1048576;
  std::printf("memory MiB: parameters %.1f gradients %.1f momentum %.1f master %.1f activations %.1f workspace %.1f\n",
              static_cast<double>(memory.parameters) / kMiB, static_cast<double>(memory.gradients) / kMiB,
              static_cast<double>(memory.momentum) / kMiB, static_cast<double>(memory.master) / kMiB,
              static_cast<double>(memory.activations) / kMiB, static_cast<double>(memory.workspace) / kMiB);
  if (options.profile) print_profile(bench.train_step());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Times single training steps of the oneDNN backend."};
  app.add_option("--model", options.model.model, "inception3, resnet50, resnet101 or vgg16");
  app.add_option("--batch", options.model.batch_size, "images per step");
  app.add_option("--image", options.model.image_size, "image side; 0: the network's own");
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--gradient-dtype", options.gradient_dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--threads", options.threads);
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  app.add_flag("--profile", options.profile, "print where the time goes");
  app.add_flag("--serve", options.serve, "answer step counts from standard input");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.code());
  }
}
