// Times single training steps without communication. scripts/maintain/peers compares the times with those of other
// systems; --profile shows where the time of a step goes.
//
// With --serve, the program answers lines from standard input, so that a script can alternate between this program and
// another system without restarting either of them. The program writes "ready PARAMETERS TEXT". To "N", it answers the
// seconds of N steps; to "loss", the loss of the last step. It ends with its input. torch_trainer.py in
// scripts/maintain/peerbench does the same, but answers the mean seconds of a step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/micro/training_bench.h"
#include "engine/base/error.h"

namespace {

using namespace hvd;
using namespace hvd::bench;
using namespace hvd::models;

struct Options {
  TrainingOptions training;
  std::string device = "cpu";
  int steps = 3;
  std::size_t rows = 30;  // single operations to print, the slowest first
  bool serve = false;
};

std::unique_ptr<TrainingBench> make_bench(const Options& options) {
  return options.device == "cuda" ? make_gpu_bench(options.training) : make_cpu_bench(options.training);
}

void print_profile(const TrainStep& step, std::size_t rows) {
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
  for (std::size_t i = 0; i < std::min(rows, operations.size()); ++i) {
    const OperationProfile& o = operations[i];
    std::printf("%-58s %-30s %9.3f %9.1f %7.2f\n", (o.kind + " " + o.node).substr(0, 58).c_str(),
                o.implementation.substr(0, 30).c_str(), o.seconds * 1e3, o.flops / o.seconds * 1e-9,
                o.bytes / o.seconds * 1e-9);
  }
  std::printf("\ninside the library's compute primitives: %.1f %% of %.1f ms\n", 100 * library / all, all * 1e3);
}

/// Answers one line of --serve. Errors: invalid_argument if the question is unknown.
std::string answer(const std::string& question, TrainingBench& bench) {
  if (question == "loss") return fmt::format("{:.17g}", bench.loss());
  int number = 0;
  if (!(std::istringstream(question) >> number && number > 0)) {
    throw Error(Errc::kInvalidArgument, fmt::format("'{}' is not a question: N or loss", question));
  }
  std::string seconds;
  for (const double step : bench.steps(number)) seconds += fmt::format("{:.9f} ", step);
  return seconds;
}

void serve(TrainingBench& bench, const Options& options) {
  const ModelSpec& model = options.training.model;
  std::cout << fmt::format("ready {} {} {} batch {}", build_model(model).parameter_count(),
                           bench.train_step().description(), options.training.dtype, model.batch_size)
            << std::endl;
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(line, bench) << std::endl;
}

int run(const Options& options) {
  const auto made = make_bench(options);
  TrainingBench& bench = *made;
  if (options.serve) {
    serve(bench, options);
    return 0;
  }
  const MemoryReport memory = bench.train_step().memory();
  std::vector<double> seconds = bench.steps(options.steps);
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto batch = static_cast<double>(options.training.model.batch_size);
  std::printf(
      "%s batch %lld %s, %d threads, %s: %.3f img/s (median of %zu steps, best %.3f), %.1f GFLOP/s, loss %.4f\n",
      options.training.model.model.c_str(), static_cast<long long>(options.training.model.batch_size),
      options.training.dtype.c_str(), options.training.threads, bench.train_step().description().c_str(),
      batch / median, seconds.size(), batch / seconds[0], batch * bench.flops_per_image() / median * 1e-9,
      bench.loss());
  constexpr double kMiB = 1048576;
  std::printf("memory MiB: parameters %.1f gradients %.1f momentum %.1f master %.1f activations %.1f workspace %.1f\n",
              static_cast<double>(memory.parameters) / kMiB, static_cast<double>(memory.gradients) / kMiB,
              static_cast<double>(memory.momentum) / kMiB, static_cast<double>(memory.master) / kMiB,
              static_cast<double>(memory.activations) / kMiB, static_cast<double>(memory.workspace) / kMiB);
  for (const std::string& note : bench.notes()) std::printf("note: %s\n", note.c_str());
  if (!std::isfinite(bench.loss())) throw Error(Errc::kCheckFailed, "the loss is not finite: training has diverged");
  if (options.training.profile) print_profile(bench.train_step(), options.rows);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Times single training steps, without communication."};
  app.add_option("--model", options.training.model.model, "inception3, resnet50, resnet101 or vgg16");
  app.add_option("--batch", options.training.model.batch_size, "images per step");
  app.add_option("--image", options.training.model.image_size, "image side; 0: the network's own");
  app.add_option("--dtype", options.training.dtype)->check(CLI::IsMember({"fp32", "bf16", "fp16", "tf32"}));
  app.add_option("--device", options.device, "cpu (default), or cuda: a captured graph per step")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("!--no-winograd", options.training.winograd, "cpu: direct 3x3 convolutions in fp32");
  app.add_option("--threads", options.training.threads);
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  app.add_option("--fusion", options.training.fusion_level, "cuda: 0 (single operations), 1 or 2 (default)")
      ->check(CLI::Range(0, 2));
  app.add_option("--images", options.training.images,
                 "cuda: what the first convolution reads, except in fp32: images with channels of zeroes, or "
                 "columns (default)")
      ->check(CLI::IsMember({"padded", "columns"}));
  app.add_flag("!--no-tune", options.training.tune, "cuda: time nothing: what --winners has, else the first choices");
  app.add_option("--winners", options.training.winners_folder, "cuda: folder that keeps the fastest engines");
  app.add_flag("--profile", options.training.profile, "print where the time goes");
  app.add_option("--profile-rows", options.rows, "single operations in that table, the slowest first");
  app.add_flag("--serve", options.serve, "answer step counts from standard input");
  CLI11_PARSE(app, argc, argv);
  const auto given = [&](const char* option) { return app.count(option) > 0; };
  // If the user chose a way to fuse, no other way is tried.
  options.training.other_fusions = !given("--fusion") && !given("--images");
  try {
    return run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.code());
  }
}
