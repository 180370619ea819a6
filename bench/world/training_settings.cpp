#include "bench/world/training_settings.h"

#include <fmt/format.h>

#include "bench/store/build_info.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/vector_level.h"
#include "models/replay/replay.h"

namespace hvd::bench {
namespace {

std::string yes_no(bool value) { return value ? "on" : "off"; }

/// The options that must be equal in every run, on CPUs and GPUs.
RunSettings common_wishes(const Options& options, const Setup& setup) {
  const EngineOptions& engine = options.engine;
  return {
      {"the program", fmt::format("{} of commit {}", build_info().version, build_info().git_commit)},
      {"--model", setup.model.model},
      {"--device", std::string(setup.device_name())},
      {"--batch-size", std::to_string(setup.model.batch_size)},
      {"--image-size", std::to_string(setup.model.image_size)},
      {"--classes", std::to_string(setup.model.classes)},
      {"--auxiliary-head", yes_no(setup.model.auxiliary_head)},
      {"--replay", setup.replay ? "a profile of hash " + hex64(Hasher().text(to_text(*setup.replay)).value()) : "off"},
      {"--dtype", setup.compute_name()},
      {std::string(kMaxCpuIsa), vector_level_limit().empty() ? "not set" : vector_level_limit()},
      {"--no-winograd", yes_no(!setup.winograd)},
      {"--allreduce-dtype", std::string(hvd::name(setup.allreduce))},
      {"--threads", options.threads > 0 ? std::to_string(options.threads) : "the share of the cores"},
      {"--seed", std::to_string(setup.seed)},
      {"--labels", std::string(models::name(setup.labels))},
      {"--learning-rate", json_number(setup.sgd.learning_rate)},
      {"--schedule", std::string(hvd::name(setup.schedule))},
      {"--algorithm", std::string(comm::name(options.comm_options.algorithm))},
      {"--bucket-mb (bytes)", std::to_string(engine.buckets.bucket_bytes)},
      {"--fusion-threshold-mb (bytes)", std::to_string(engine.negotiation.fusion.threshold_bytes)},
      {"--cycle-time-ms (microseconds)", std::to_string(engine.cycle_time.count())},
      {"--segment-kb (bytes)", std::to_string(options.comm_options.segment_bytes)},
      {"--tune-schedule", yes_no(setup.tuning.on)},
      {"--bucket-mb given", yes_no(setup.tuning.buckets_given)},
      {"--tuning-folder", setup.gpu.tuning_folder.empty() ? "not given" : "given"},
      {"--cache-capacity", std::to_string(engine.negotiation.cache_capacity)},
      {"the command", setup.equal_batches ? "validate" : "train"},
      {"--efficiency", yes_no(setup.interleaved)},
      {"--fit", yes_no(options.fit)},
      {"--profile", yes_no(setup.profile)},
      {"--timeline-filename", yes_no(!engine.timeline_filename.empty())},
  };
}

}  // namespace

RunSettings settings_of(const Options& options, const Setup& setup) {
  RunSettings settings = common_wishes(options, setup);
  if (setup.device == Device::kCuda) {
    const GpuOptions& gpu = setup.gpu;
    settings.insert(settings.end(), {{"--fusion-level", std::to_string(gpu.fusion_level)},
                                     {"CUDA graphs", yes_no(gpu.schedule.graph)},
                                     {"launching ahead", yes_no(gpu.schedule.ahead)},
                                     {"overlap", yes_no(gpu.schedule.overlap)},
                                     {"--deterministic", yes_no(gpu.deterministic)},
                                     {"--loss-scale", json_number(gpu.loss_scale)},
                                     {"--tune", yes_no(gpu.tune)},
                                     {"--nccl-max-ctas", std::to_string(gpu.nccl.max_ctas)},
                                     {"NCCL registration", yes_no(gpu.nccl.register_memory)},
                                     {"--share-gpus", yes_no(gpu.nccl.share_gpus)}});
  }
  return settings;
}

}  // namespace hvd::bench
