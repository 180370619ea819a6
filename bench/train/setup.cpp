#include "bench/train/setup.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "engine/base/error.h"

namespace hvd::bench {
namespace {

constexpr std::int64_t kDefaultBatchCpu = 8;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw Error(Errc::kIo, path + ": cannot read the replay file: " + std::strerror(errno));
  return text.str();
}

/// Whether the user wrote `option` himself; what he did not write follows the replay file.
bool given(const Options& options, std::string_view option) {
  return std::any_of(options.argv.begin(), options.argv.end(), [&](const std::string& argument) {
    return argument == option || argument.starts_with(std::string(option) + "=");
  });
}

void refuse_mismatch(const std::string& file, const std::string& what, const std::string& asked,
                     const std::string& recorded) {
  if (asked == recorded) return;
  throw Error(Errc::kInvalidArgument, what + " " + asked + " contradicts " + file + ", which was recorded with " +
                                          recorded + "; leave the option out or record another file");
}

void take_replay(const Options& options, Setup& setup) {
  const std::string& file = options.replay_file;
  setup.replay = models::parse_replay(read_file(file), file);
  const models::ReplayProfile& profile = *setup.replay;
  if (given(options, "--model"))
    refuse_mismatch(file, "--model", models::find_model(options.model).name, profile.model);
  if (options.batch_size != 0) {
    refuse_mismatch(file, "--batch-size", std::to_string(options.batch_size), std::to_string(profile.batch_size));
  }
  if (options.image_size != 0) {
    refuse_mismatch(file, "--image-size", std::to_string(options.image_size), std::to_string(profile.image_size));
  }
  if (given(options, "--dtype")) {
    refuse_mismatch(file, "--dtype", std::string(hvd::name(options.compute)), profile.compute_type);
  }
  setup.replay = models::shrink_gradients(std::move(*setup.replay), options.replay_shrink);
  setup.model.model = profile.model;
  setup.model.batch_size = profile.batch_size;
  setup.model.image_size = profile.image_size;
  std::string note = "replay: nothing is computed; the times of a step are those of run " + profile.source_run +
                     " on " + profile.device + ", only the communication is real";
  if (options.replay_shrink > 1) {
    note += ", with every gradient cut to 1/" + std::to_string(options.replay_shrink) + " of its size";
  }
  setup.notes.push_back(std::move(note));
}

void take_model(const Options& options, Setup& setup) {
  const models::ModelInfo& info = models::find_model(options.model);
  setup.model.model = info.name;
  setup.model.batch_size = options.batch_size;
  setup.model.image_size = options.image_size;
  if (options.batch_size == 0) {
    setup.model.batch_size = kDefaultBatchCpu;
    setup.notes.push_back("batch of " + std::to_string(kDefaultBatchCpu) + " images per rank (the CPU's default)");
  }
  if (options.image_size == 0) setup.model.image_size = info.default_image_size;
  if (setup.device == Device::kCpu) {
    if (const std::string reason = models::onednn_unsupported_reason(options.compute); !reason.empty()) {
      throw Error(Errc::kUnsupported, reason);
    }
  }
}

void refuse_absent(const Options& options) {
  if (options.device == Device::kCuda) {
    throw Error(Errc::kUnsupported, "--device cuda: this build computes on the CPU only; use --device cpu");
  }
  if (options.comm == CommBackend::kNccl) {
    throw Error(Errc::kUnsupported, "--comm nccl: this build has no NCCL; use --comm mpi or --comm loopback");
  }
}

}  // namespace

std::string_view Setup::device_name() const {
  if (replay) return "replay";
  return device == Device::kReference ? "reference" : "cpu";
}

std::string Setup::compute_name() const { return replay ? replay->compute_type : std::string(hvd::name(compute)); }

Setup settle(const Options& options) {
  refuse_absent(options);
  Setup setup;
  setup.model.classes = options.classes;
  setup.model.auxiliary_head = options.auxiliary_head;
  setup.device = options.device == Device::kReference ? Device::kReference : Device::kCpu;
  setup.compute = options.compute;
  setup.gradient = options.allreduce.value_or(DataType::kF32);
  setup.seed = options.seed;
  setup.sgd.learning_rate = options.learning_rate;
  setup.sgd.momentum = options.momentum;
  setup.sgd.weight_decay = options.weight_decay;
  setup.profile = options.profile;
  setup.schedule = options.comm == CommBackend::kNone ? Schedule::kNone : options.engine.schedule;
  setup.fusion_threshold_bytes = options.engine.negotiation.fusion.threshold_bytes;
  setup.interleaved = options.efficiency;
  if (setup.interleaved && !setup.reduces()) {
    throw Error(Errc::kInvalidArgument, "--efficiency measures what communication costs: leave out --comm none");
  }
  if (options.num_batches_per_iter < 1) {
    throw Error(Errc::kInvalidArgument, "--num-batches-per-iter must be at least 1");
  }
  if (options.replay_file.empty()) {
    take_model(options, setup);
  } else {
    take_replay(options, setup);
  }
  return setup;
}

}  // namespace hvd::bench
