// The user's options of `train` and `validate`: plain data that is filled once from the command line and the
// environment, and is stored with the run. bench/cli parses the options, and session.h uses them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/world/ranks.h"
#include "engine/base/types.h"
#include "engine/comm/communicator.h"
#include "engine/comm/device_communicator.h"
#include "engine/runtime/device_engine.h"
#include "engine/runtime/engine.h"
#include "models/random.h"
#include "models/train_step.h"

namespace hvd::bench {

enum class Device : std::uint8_t {
  kAuto,  ///< the GPU if there is one, else the CPU
  kCpu,   ///< oneDNN
  kCuda,  ///< cuDNN
};

/// Options for runs on GPUs. A run on the CPU ignores most of them.
struct GpuOptions {
  bool tf32 = false;           ///< --dtype tf32: fp32, except that inputs of products are rounded to tf32
  int fusion_level = 2;        ///< see models/cudnn/run/cudnn_step.h
  bool deterministic = false;  ///< use only engines that add in a fixed order
  double loss_scale = 0;       ///< used with fp16 only; 0: dynamic
  bool tune = false;           ///< time the engines of each operation before training
  std::string tuning_folder;   ///< folder for the fastest engines (GPU) and schedules; empty: nothing is kept
  [[nodiscard]] bool tunes() const { return tune || !tuning_folder.empty(); }
  DeviceOptions schedule;  ///< overlap, graph, ahead
  comm::NcclOptions nccl;
};

/// --tune-schedule: tries settings before training, and trains with the fastest.
struct ScheduleTuning {
  bool on = false;
  bool buckets_given = false;  ///< --bucket-mb was given: the bucket size is not searched
};

/// Options of `hvd_bench validate`, which checks that all ranks compute the same bits, equally fast.
struct ValidateOptions {
  int steps = 30;           ///< steps whose times are compared; a few steps run before them
  double threshold = 0.02;  ///< a rank or node is slow if it takes longer than the others by at least this fraction
};

/// The user's choices that settle() passes on to the Setup as they are.
struct TrainingChoices {
  DataType compute = DataType::kF32;
  bool winograd = true;  ///< false with --no-winograd: fp32 convolutions on the CPU are direct
  std::uint64_t seed = 1;
  models::LabelRule label_rule = models::LabelRule::kFresh;
  models::SgdOptions sgd;  ///< for one rank; the rate is scaled by the world size (setup.h)
  GpuOptions gpu;
  ScheduleTuning tuning;
  bool efficiency = false;  ///< --efficiency: measure phases solo, none and full in turns; print the decomposition
  bool profile = false;     ///< --profile: time every operation (the run is marked traced)
};

// A process has only one Options object, so the members are grouped by subject and not by size.
struct Options : WorldOptions, TrainingChoices {  // NOLINT(clang-analyzer-optin.performance.Padding)
  std::vector<std::string> argv;                  ///< the command line as given

  // what to train
  std::string model = "resnet101";
  std::int64_t batch_size = 0;  ///< images per rank; 0: 64 on a GPU, 8 on a CPU (printed and stored)
  std::int64_t image_size = 0;  ///< 0: the network's default
  std::int64_t classes = 1000;
  bool auxiliary_head = false;
  Device device = Device::kAuto;
  std::optional<DataType> allreduce;  ///< --allreduce-dtype, --fp16-allreduce; default fp32
  int threads = 0;                    ///< compute threads per rank; 0: this rank's share of the cores
  std::string replay_file;            ///< --replay: play back recorded times instead of computing
  std::int64_t replay_shrink = 1;     ///< --replay-shrink: divides the recorded gradients' sizes
  std::string record_replay_file;     ///< --record-replay: write what this run's rank 0 measured

  // how to reduce
  bool host_comm = false;  ///< --comm mpi or loopback was given: gradients are reduced in host memory
  EngineOptions engine;    ///< engine.deadline limits every wait for another rank after the first steps
  comm::CommOptions comm_options;
  std::vector<std::string> unused;  ///< options and variables that the user set and engine.schedule does not use

  std::optional<ValidateOptions> validate;  ///< if set, the options under "how long to measure" are ignored

  // how long to measure
  std::optional<int> num_warmup_batches;  ///< if given, exactly this many steps; else until step times are steady
  int num_batches_per_iter = 1;           ///< steps per sample (Horovod's synthetic benchmark: 10)
  std::optional<int> num_iters;           ///< if given, exactly this many samples; else until the interval is narrow
  double target_interval = 0.02;          ///< target half width of the median's interval, as a fraction of the median
  std::chrono::seconds max_time{300};     ///< limit on the time of the measurement, warm-up included
  bool fit = false;   ///< --fit: lower batch_size, then image_size, until kMinRounds rounds fit max_time
  bool check = true;  ///< --no-check skips the independent check of the reduced gradients

  // where results go
  std::string db_file = "hvd_bench.db";       ///< --db; "" (--no-db) stores nothing
  std::map<std::string, std::string> labels;  ///< --label: stored with every run, not part of any fingerprint
  bool json = false;                          ///< --json: print one JSON document on standard output and nothing else
  bool quiet = false;                         ///< print only the "total images/sec" line
  bool verbose = false;                       ///< also print the explanations of the figures
};

}  // namespace hvd::bench
