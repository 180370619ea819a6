// The TrainStep that uses oneDNN: it compiles the graph at construction, and runs the compiled program in each step.
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "models/onednn/compat.h"
#include "models/onednn/compiler.h"
#include "models/onednn/parameters.h"
#include "models/onednn/primitive_program.h"
#include "models/onednn/threads.h"
#include "models/thread_team.h"
#include "models/train_step.h"

namespace hvd::models {
namespace {

using namespace onednn;  // NOLINT(google-build-using-namespace): this file is the folder's interface to the outside

class OnednnStep final : public TrainStep, public ShardedUpdate {
 public:
  OnednnStep(Graph graph, const StepOptions& options, const ArenaAllocator& allocate)
      : options_(options),
        graph_(std::move(graph)),
        program_(dnnl::engine(dnnl::engine::kind::cpu, 0)),
        parameters_(graph_, options.gradient, program_) {
    Compiler compiler(graph_, {.compute = options.compute, .seed = options.seed, .winograd = options.winograd},
                      program_, parameters_);
    compiler.compile();
    images_ = compiler.images();
    parameters_.allocate(allocate);
    program_.bind();
    parameters_.initialise(options.seed);
    program_.refresh();
  }

  std::span<const ArenaSlot> slots() const override { return parameters_.slots(); }
  DataType gradient_type() const override { return parameters_.gradient_type(); }
  std::span<std::byte> gradient_arena() override { return parameters_.gradient_arena(); }
  std::vector<std::span<std::byte>> state_to_broadcast() override {
    return {parameters_.weight_arena(), parameters_.state_arena()};
  }
  void state_changed() override {
    const ThreadScope threads(options_.threads);
    program_.refresh();
  }

  double forward_backward(const Batch& batch, GradientSink& sink) override {
    check(batch);
    const ThreadScope threads(options_.threads);
    // oneDNN does not accept a pointer to const, but oneDNN only reads the images.
    program_.set_external(images_, const_cast<float*>(batch.images.data()));
    StepInput input{.batch = &batch, .loss = 0};
    program_.run(input, sink, options_.profile);
    ++steps_;
    return input.loss;
  }

  void update(const SgdOptions& options) override {
    const ThreadScope threads(options_.threads);
    const auto start = Clock::now();
    parameters_.update(options);
    update_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    ++updates_;
    program_.refresh_after_update(options_.profile);
  }

  ShardedUpdate* sharded() override { return this; }
  void keep_momentum(std::span<const ArenaRange> share) override { parameters_.keep_momentum(share); }
  void update_share(const SgdOptions& options, std::span<const ArenaRange> share) override {
    const ThreadScope threads(options_.threads);
    parameters_.update_share(options, share);
  }
  std::span<std::byte> weight_arena() override { return parameters_.weight_arena(); }
  DataType weight_type() const override { return DataType::kF32; }

  void read_parameter(std::size_t parameter, std::span<float> out) override {
    const ThreadScope threads(options_.threads);
    parameters_.read(parameter, out);
  }
  void write_parameter(std::size_t parameter, std::span<const float> in) override {
    const ThreadScope threads(options_.threads);
    parameters_.write(parameter, in);
    program_.refresh();
  }
  void read_gradient(std::size_t parameter, std::span<float> out) override {
    const ThreadScope threads(options_.threads);
    parameters_.read_gradient(parameter, out);
  }

  MemoryReport memory() const override {
    const bool f32 = options_.compute == DataType::kF32;
    const std::size_t weights = parameters_.weight_arena().size();
    MemoryReport report;
    report.parameters = (f32 ? weights : program_.persistent_bytes()) + parameters_.state_arena().size();
    report.master = f32 ? 0 : weights;
    report.gradients = parameters_.gradient_arena().size();
    report.momentum = parameters_.momentum_bytes();
    report.activations = program_.activation_bytes();
    report.workspace = program_.scratchpad_bytes() + (f32 ? program_.persistent_bytes() : 0);
    return report;
  }

  std::vector<OperationProfile> profile() const override;

  std::string slow_reason() const override { return reference_code_text(program_); }
  std::string description() const override { return fmt::format("onednn {} {}", library_version(), library_isa()); }

 private:
  using Clock = std::chrono::steady_clock;

  void check(const Batch& batch) const {
    const auto images = static_cast<std::size_t>(graph_.tensor(graph_.images).shape.count());
    const auto labels = static_cast<std::size_t>(graph_.batch_size);
    if (batch.images.size() != images || batch.labels.size() != labels) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{}: a batch has {} image elements and {} labels, not {} and {}", graph_.model, images,
                              labels, batch.images.size(), batch.labels.size()));
    }
  }

  StepOptions options_;
  Graph graph_;
  PrimitiveProgram program_;
  Parameters parameters_;
  Buffer* images_ = nullptr;
  std::int64_t steps_ = 0, updates_ = 0;
  double update_seconds_ = 0;
};

std::vector<OperationProfile> OnednnStep::profile() const {
  if (!options_.profile) return {};
  std::vector<OperationProfile> result;
  // An operation that consists of several parts (the bands of a convolution) gets one entry with their sums.
  std::map<std::tuple<std::string, std::string, std::string, bool>, std::size_t> index_of;
  const auto add = [&](const BoundOperation& operation, std::int64_t times) {
    const auto [at, is_new] = index_of.try_emplace(
        {operation.node, operation.kind, operation.implementation, operation.library}, result.size());
    if (is_new) {
      result.push_back({.node = operation.node,
                        .kind = operation.kind,
                        .implementation = operation.implementation,
                        .library = operation.library,
                        .seconds = 0,
                        .flops = 0,
                        .bytes = 0});
    }
    OperationProfile& sum = result[at->second];
    sum.seconds += times > 0 ? operation.seconds / static_cast<double>(times) : 0;
    sum.flops += operation.flops;
    sum.bytes += operation.bytes;
  };
  for (const BoundOperation& operation : program_.operations()) add(operation, steps_);
  for (const BoundOperation& operation : program_.refresh_operations()) {
    if (!operation.done_by_update) add(operation, updates_);
  }
  // The update reads and writes weights and momentum, reads the gradients, and writes copies of the weights.
  const auto elements = static_cast<double>(parameters_.momentum_arena().size()) / sizeof(float);
  const double bytes = elements * (4 * sizeof(float) + static_cast<double>(size_of(gradient_type()))) +
                       static_cast<double>(parameters_.bytes_copied_by_update());
  result.push_back({.node = "sgd",
                    .kind = "update",
                    .implementation = "own",
                    .library = false,
                    .seconds = updates_ > 0 ? update_seconds_ / static_cast<double>(updates_) : 0,
                    .flops = 6 * elements,
                    .bytes = bytes});
  return result;
}

}  // namespace

std::string onednn_unsupported_reason(DataType compute) {
  switch (compute) {
    case DataType::kF32: return {};
    case DataType::kBF16:
      if (bf16_units(dnnl::get_effective_cpu_isa()) != Bf16Units::kNone) return {};
      return fmt::format(
          "oneDNN {} computes bf16 on processors with avx512_core_bf16 or AMX; this one has {}: use --dtype fp32",
          library_version(), library_isa());
    case DataType::kF16: return "fp16 is for GPUs; on a CPU use --dtype fp32 or bf16";
    default: return "oneDNN computes in fp32 or bf16, not " + std::string(name(compute));
  }
}

std::string onednn_slow_reason(DataType compute) {
  if (compute != DataType::kBF16 || bf16_units(dnnl::get_effective_cpu_isa()) != Bf16Units::kVectors) return {};
  return fmt::format(
      "oneDNN {} computes bf16 with AVX-512 here ({}), without AMX; whole steps took twice as long as in fp32 where "
      "they "
      "were measured, although a single convolution may be faster: use --dtype fp32, or a processor with AMX",
      library_version(), library_isa());
}

std::string onednn_version_reason() {
  const dnnl_version_t* version = dnnl_version();
  return onednn::version_reason(static_cast<unsigned>(dnnl::get_effective_cpu_isa()), {version->major, version->minor});
}

std::string onednn::reference_code_text(const PrimitiveProgram& program) {
  std::size_t count = 0;
  std::string first;
  for (const auto& operations : {program.operations(), program.refresh_operations()}) {
    for (const BoundOperation& operation : operations) {
      if (!is_reference(operation.implementation)) continue;
      if (count++ == 0) first = fmt::format("{} of {}", operation.kind, operation.node);
    }
  }
  if (count == 0) return {};
  return fmt::format(
      "oneDNN {} has no compiled code for {} operation{} on this processor ({}), the first {}; its reference code may "
      "take 100 times as long: use larger images or another version of oneDNN",
      library_version(), count, count == 1 ? "" : "s", library_isa(), first);
}

std::string onednn_reference_code(const Graph& graph, DataType compute, int threads) {
  if (const std::string reason = onednn_unsupported_reason(compute); !reason.empty()) {
    throw Error(Errc::kUnsupported, reason);
  }
  const ThreadScope scope(threads);
  try {
    PrimitiveProgram program(dnnl::engine(dnnl::engine::kind::cpu, 0));
    Parameters parameters(graph, compute, program);
    Compiler(graph, {.compute = compute}, program, parameters).compile();
    return reference_code_text(program);
  } catch (const dnnl::error& error) {
    throw Error(Errc::kBackend,
                fmt::format("oneDNN {} could not compile {}: {}", library_version(), graph.model, error.what()));
  }
}

std::unique_ptr<TrainStep> make_onednn_step(Graph graph, const StepOptions& options, const ArenaAllocator& allocate) {
  if (const std::string reason = onednn_unsupported_reason(options.compute); !reason.empty()) {
    throw Error(Errc::kUnsupported, reason);
  }
  if (options.gradient != DataType::kF32 && options.gradient != DataType::kBF16) {
    throw Error(Errc::kUnsupported,
                "the oneDNN backend makes gradients in fp32 or bf16, not " + std::string(name(options.gradient)));
  }
  if (options.threads < 1) {
    throw Error(Errc::kInvalidArgument, "threads must be at least 1, not " + std::to_string(options.threads));
  }
  // The library's compiled code waits for ever for the threads that OpenMP does not give.
  if (const int given = start_team(options.threads).threads; given < options.threads) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("OpenMP gives {} of {} threads; give --threads {} or fewer, or unset OMP_THREAD_LIMIT and "
                            "OMP_MAX_ACTIVE_LEVELS",
                            given, options.threads, given));
  }
  if (graph.first_backward == graph.nodes.size()) {
    throw Error(Errc::kInvalidArgument, graph.model + ": the graph must be differentiated first");
  }
  // oneDNN compiles a primitive for the number of threads that is set during the compilation.
  const ThreadScope threads(options.threads);
  try {
    return std::make_unique<OnednnStep>(std::move(graph), options, allocate);
  } catch (const dnnl::error& error) {
    throw Error(Errc::kBackend,
                fmt::format("oneDNN {} could not build the training step: {}", library_version(), error.what()));
  }
}

}  // namespace hvd::models
