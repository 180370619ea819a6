#include "bench/world/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "bench/world/shipped_steps.h"
#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

constexpr std::int64_t kDefaultBatchCpu = 8;
constexpr std::int64_t kDefaultBatchGpu = 64;  // as in Horovod's published figures

/// Returns true if the user gave `option`. Options that the user did not give are taken from the replay file.
bool given(const Options& options, std::string_view option) {
  return std::any_of(options.argv.begin(), options.argv.end(), [&](const std::string& argument) {
    return argument == option || argument.starts_with(std::string(option) + "=");
  });
}

/// Returns the network that `model` is an alias of, or `model` itself. A replay may have a name that no network has.
std::string without_alias(const std::string& model) {
  for (const models::ModelInfo& info : models::model_catalogue()) {
    if (std::find(info.aliases.begin(), info.aliases.end(), model) != info.aliases.end()) return info.name;
  }
  return model;
}

void refuse_mismatch(const std::string& file, const std::string& what, const std::string& asked,
                     const std::string& recorded) {
  if (asked == recorded) return;
  throw Error(
      Errc::kInvalidArgument,
      fmt::format("{} {} contradicts {}, which was recorded with {}; leave the option out or record another file", what,
                  asked, file, recorded));
}

/// Returns true if the run hands over gradients at their submit times, and all of these are 0, as a graph records them.
bool hands_over_at_once(const Setup& setup) {
  const std::vector<models::ReplayProfile::Gradient>& gradients = setup.replay->gradients;
  return setup.device == Device::kCuda && setup.schedule == Schedule::kNegotiated && gradients.size() > 1 &&
         std::all_of(gradients.begin(), gradients.end(),
                     [](const auto& gradient) { return gradient.submit_seconds == 0 && gradient.ready_seconds > 0; });
}

void take_replay(const Options& options, Setup& setup) {
  const std::string& file = options.replay_file;
  RecordedStep recorded = read_replay(file);
  setup.replay = std::move(recorded.profile);
  setup.replay_hash = std::move(recorded.hash);
  const models::ReplayProfile& profile = *setup.replay;
  if (given(options, "--model")) refuse_mismatch(file, "--model", without_alias(options.model), profile.model);
  if (options.batch_size != 0) {
    refuse_mismatch(file, "--batch-size", std::to_string(options.batch_size), std::to_string(profile.units_per_step));
  }
  if (options.image_size != 0) {
    refuse_mismatch(file, "--image-size", std::to_string(options.image_size), std::to_string(profile.image_size));
  }
  if (given(options, "--dtype")) {
    refuse_mismatch(file, "--dtype", options.gpu.tf32 ? "tf32" : std::string(hvd::name(options.compute)),
                    profile.compute_type);
  }
  setup.replay = models::shrink_gradients(std::move(*setup.replay), options.replay_shrink);
  setup.model.model = profile.model;
  setup.model.batch_size = profile.units_per_step;
  setup.model.image_size = profile.image_size;
  std::string note = fmt::format(
      "replay: nothing is computed; the times of a step are those of run {} on {} (profile {}), only the communication "
      "is real",
      profile.source_run, profile.device, setup.replay_hash);
  if (options.replay_shrink > 1) {
    note += fmt::format(", with every gradient cut to 1/{} of its size", options.replay_shrink);
  }
  setup.notes.push_back(std::move(note));
  if (std::string unplayed = unplayed_file(file); !unplayed.empty()) setup.notes.push_back(std::move(unplayed));
  if (setup.device == Device::kCuda) {
    setup.notes.emplace_back("a replay on GPUs has never run on one, only on fake GPUs (docs/gpu.md)");
  }
  if (hands_over_at_once(setup)) {
    setup.notes.push_back(fmt::format(
        "caution: {} was recorded from CUDA graphs, which hand over all gradients at once, so --schedule negotiated "
        "fuses more of them than training does; record it with --schedule negotiated or --no-cuda-graph",
        file));
  }
}

void take_model(const Options& options, Setup& setup) {
  const models::ModelInfo& info = models::find_model(options.model);
  setup.model.model = info.name;
  setup.model.batch_size = options.batch_size;
  setup.model.image_size = options.image_size;
  if (options.batch_size == 0) {
    const bool gpu = setup.device == Device::kCuda;
    setup.model.batch_size = gpu ? kDefaultBatchGpu : kDefaultBatchCpu;
    if (!options.fit) {  // the line of --fit says which batch was taken
      setup.notes.push_back(
          fmt::format("batch of {} images per rank (the {}'s default)", setup.model.batch_size, gpu ? "GPU" : "CPU"));
    }
  }
  if (options.image_size == 0) setup.model.image_size = info.default_image_size;
  if (setup.device == Device::kCpu) {
    if (const std::string reason = models::onednn_unsupported_reason(options.compute); !reason.empty()) {
      throw Error(Errc::kUnsupported, reason);
    }
  }
}

/// Returns in one line why the GPUs cannot be used, or "" if they can. A replay needs no cuDNN.
std::string absence(const Options& options, GpuBackend* gpus) {
  return options.replay_file.empty() || gpus == nullptr ? gpu_absence(gpus) : gpu_absence(gpus->list());
}

/// Decides whether the session runs on GPUs. A replay does so only if the user asks for it. If the user left the device
/// open and no GPU can be used, a note says why. Errors: unsupported if the user asked for a GPU and no GPU can be
/// used.
bool takes_gpu(const Options& options, GpuBackend* gpus, Setup& setup) {
  const bool nccl = options.comm == CommBackend::kNccl;
  const std::string host_memory =
      fmt::format("--comm {} reduces gradients in host memory", options.comm == CommBackend::kMpi ? "mpi" : "loopback");
  const bool replays = !options.replay_file.empty();
  if (options.device == Device::kCpu || (replays && options.device != Device::kCuda)) {
    if (nccl) {
      throw Error(Errc::kUnsupported,
                  "--comm nccl reduces gradients in GPU memory, and these are in the host's; use --comm mpi or "
                  "--comm auto");
    }
    return false;
  }
  if (options.host_comm && options.device == Device::kCuda) {
    throw Error(Errc::kInvalidArgument, host_memory + "; on GPUs leave it out, or say --comm nccl");
  }
  std::string why = absence(options, gpus);
  if (why.empty() && options.host_comm) why = host_memory;
  if (why.empty()) return true;
  if (options.device == Device::kCuda) {
    throw Error(Errc::kUnsupported,
                fmt::format("--device cuda: {} (or {} on the CPU: --device cpu)", why, replays ? "replay" : "compute"));
  }
  if (nccl) throw Error(Errc::kUnsupported, fmt::format("--comm nccl: {}; use --comm mpi or --comm auto", why));
  if (gpus != nullptr) setup.notes.push_back("computing on the CPU: " + why);  // without a backend, no note
  return false;
}

/// Refuses types in which no CPU backend computes. `setup.device` must be settled before the call.
void refuse_types(const Options& options, const Setup& setup) {
  if (setup.device == Device::kCuda) return;
  if (options.replay_file.empty() && (options.gpu.tf32 || options.compute == DataType::kF16)) {
    throw Error(Errc::kUnsupported,
                fmt::format("--dtype {}: needs a GPU, and this run computes on the CPU; use --dtype fp32 or, where the "
                            "processor has it, --dtype bf16",
                            options.gpu.tf32 ? "tf32" : "fp16"));
  }
}

/// Refuses --algorithm on GPUs. `setup.device` must be settled before the call.
void refuse_algorithm(const Options& options, const Setup& setup) {
  if (setup.device != Device::kCuda || options.comm_options.algorithm == comm::Algorithm::kAuto) return;
  throw Error(Errc::kUnsupported,
              fmt::format("--algorithm {}: on GPUs NCCL chooses how it reduces, between nodes too; leave --algorithm "
                          "out, or compute on the CPU (--device cpu)",
                          comm::name(options.comm_options.algorithm)));
}

/// Refuses options that the sharded schedule does not support. `setup` must be settled before the call.
void refuse_sharded(const Options& options, const Setup& setup) {
  if (setup.schedule != Schedule::kSharded) return;
  if (setup.device == Device::kCuda) {
    throw Error(
        Errc::kUnsupported,
        "--schedule sharded distributes gradients over the ranks in host memory, and this run computes on the GPU; use "
        "--schedule static, or --device cpu");
  }
  if (setup.allreduce != DataType::kF32) {
    throw Error(
        Errc::kUnsupported,
        fmt::format("--schedule sharded exchanges fp32; leave out --allreduce-dtype {} or use --schedule static",
                    hvd::name(setup.allreduce)));
  }
  if (!options.record_replay_file.empty()) {
    throw Error(Errc::kUnsupported,
                "--record-replay records the update of all weights, and under --schedule sharded a rank updates its "
                "share; use --schedule static");
  }
}

/// Refuses options that the search for a schedule does not support. `setup` must be settled before the call.
void refuse_search(const Setup& setup) {
  if (!setup.tuning.on) return;
  if (!setup.reduces()) {
    throw Error(Errc::kUnsupported,
                "--tune-schedule tries how gradients are reduced, and this run reduces none; leave it out");
  }
  if (setup.device == Device::kCuda && setup.schedule != Schedule::kStatic) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("--tune-schedule on GPUs tries settings of the static schedule, and this run's is {}; "
                            "leave one of them out",
                            hvd::name(setup.schedule)));
  }
  if (setup.profile) {
    throw Error(Errc::kInvalidArgument,
                "--profile waits for every operation, so no schedule can be tried beside it; leave out --profile or "
                "--tune-schedule");
  }
}

void refuse_fit(const Options& options) {
  if (!options.fit) return;
  if (!options.efficiency) {
    throw Error(Errc::kInvalidArgument,
                "--fit makes the rounds of --efficiency fit: give --efficiency, or leave --fit out");
  }
  std::string reason;
  if (!options.replay_file.empty()) reason = "--fit chooses a batch to compute, and --replay computes none";
  if (options.num_iters) reason = "--fit plans the number of samples, and --num-iters gives it";
  if (!reason.empty()) throw Error(Errc::kInvalidArgument, reason + "; leave one of them out");
}

}  // namespace

double scaled_learning_rate(double one_rank, int ranks, const RateScaling& scaling) {
  return std::min(one_rank * ranks, std::max(one_rank, scaling.bound));
}

double learning_rate_of_step(double one_rank, int ranks, std::uint64_t step, const RateScaling& scaling) {
  const double scaled = scaled_learning_rate(one_rank, ranks, scaling);
  if (step >= scaling.warm_up_steps) return scaled;
  const double share = static_cast<double>(step) / static_cast<double>(scaling.warm_up_steps);
  return one_rank + share * (scaled - one_rank);
}

RecordedStep read_replay(const std::string& named) {
  const std::string path = step_file(named);
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(Errc::kIo, path + ": is not a regular file; a replay profile is read more than once: save it in one");
  }
  const std::optional<std::string> text = read_file(path);
  if (!text) throw Error(Errc::kIo, fmt::format("{}: cannot read the replay file: {}", path, std::strerror(errno)));
  return {models::parse_replay(*text, path), hex64(Hasher().bytes(std::as_bytes(std::span(*text))).value()), path};
}

std::string_view Setup::device_name() const {
  if (replay) return "replay";
  return device == Device::kCuda ? "cuda" : "cpu";
}

std::string Setup::compute_name() const {
  if (replay) return replay->compute_type;
  return device == Device::kCuda && gpu.tf32 ? "tf32" : std::string(hvd::name(compute));
}

Setup settle(const Options& options, GpuBackend* gpus) {
  Setup setup;
  static_cast<TrainingChoices&>(setup) = options;
  setup.model.classes = options.classes;
  setup.model.auxiliary_head = options.auxiliary_head;
  setup.device = takes_gpu(options, gpus, setup) ? Device::kCuda : Device::kCpu;
  refuse_types(options, setup);
  refuse_algorithm(options, setup);
  setup.deadline = options.engine.deadline;
  setup.startup_deadline = options.startup_deadline;
  setup.allreduce = options.allreduce.value_or(DataType::kF32);
  if (setup.device == Device::kCuda) setup.gradient = setup.allreduce;
  setup.schedule = options.comm == CommBackend::kNone ? Schedule::kNone : options.engine.schedule;
  setup.fusion_threshold_bytes = options.engine.negotiation.fusion.threshold_bytes;
  setup.equal_batches = options.validate.has_value();
  if (setup.efficiency && !setup.reduces()) {
    throw Error(Errc::kInvalidArgument, "--efficiency measures what communication costs: leave out --comm none");
  }
  if (options.num_batches_per_iter < 1) {
    throw Error(Errc::kInvalidArgument, "--num-batches-per-iter must be at least 1");
  }
  refuse_fit(options);
  refuse_sharded(options, setup);
  refuse_search(setup);
  for (const std::string& setting : options.unused) {
    setup.notes.push_back(
        fmt::format("{} has no effect: --schedule {} does not use it{}", setting, hvd::name(setup.schedule),
                    setup.reduces() && setting != "--bucket-mb" ? ", --schedule negotiated does" : ""));
  }
  if (options.replay_file.empty()) {
    take_model(options, setup);
  } else {
    take_replay(options, setup);
  }
  return setup;
}

}  // namespace hvd::bench
