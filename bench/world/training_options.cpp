#include "bench/world/training_options.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "bench/measure/rank_comparison.h"
#include "bench/store/build_info.h"
#include "engine/base/error.h"
#include "engine/base/vector_level.h"

namespace hvd::bench {
namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();
constexpr unsigned kUsual = kEqual | kCampaign | kRerun;
constexpr unsigned kOfEngine = kUsual | kTrainOnly | kFingerprint;  // recorded, as a fact of the engine
constexpr unsigned kNegotiated = kOfEngine | kOfNegotiation;
constexpr unsigned kOfGpus = kUsual | kOnGpus;
constexpr unsigned kMeasured = kCampaign | kRerun | kTrainOnly;

void add_training(OptionTable& add, Options& o) {
  add.group("What to train");
  add.value("--model", "NAME", "inception3, resnet50, resnet101 (default) or vgg16",
            {.in = kEqual | kRerun, .decided = "models"}, [&o](const std::string& text) { o.model = text; });
  add.integer("--batch-size", "Images per rank and step (default: 64 on a GPU, 8 on a CPU)",
              {.in = kEqual | kRerun, .decided = "weak.batch_size or strong.global_batch"}, 1, 1 << 16, o.batch_size);
  add.integer("--image-size", "Height and width of the images (default: the network's own, 224 or 299)", {kUsual}, 1,
              1 << 14, o.image_size);
  add.integer("--classes", "Classes of the last layer (default: 1000)",
              {.in = kUsual | kFingerprint, .fact = "option.classes"}, 2, 1 << 20, o.classes);
  add.flag("--auxiliary-head", "Inception V3 with its auxiliary classifier", {kUsual}, o.auxiliary_head, true);
  const std::vector<std::string> types{"fp32", "tf32", "fp16", "bf16"};
  add.value("--dtype", "TYPE", "Compute in fp32 (default), bf16, tf32 or fp16 (the last two: GPU only)",
            {.in = kEqual | kRerun, .decided = "dtypes", .pattern = "[a-z0-9]+"},
            [&o, types](const std::string& text) {
              constexpr std::array kTypes{DataType::kF32, DataType::kF32, DataType::kF16, DataType::kBF16};
              o.compute = kTypes.at(parse_word("--dtype", text, types));
              o.gpu.tf32 = text == "tf32";  // settle() checks later whether this machine supports tf32
            })
      .words = types;
  add.flag("--no-winograd", "On CPUs in fp32: direct 3x3 convolutions, slower, with smaller rounding errors", {kUsual},
           o.winograd, false);
  add.choice("--device", "DEVICE", "auto (default: a GPU if one can be used), cpu or cuda",
             {.in = kEqual | kRerun, .decided = "program.device of the site"}, o.device,
             {{"auto", Device::kAuto}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}});
  add.integer(
      "--threads", "Compute threads per rank (default: the rank's share of the cores)",
      {.in = kUsual, .text = [&o] { return o.threads > 0 ? std::to_string(o.threads) : "the share of the cores"; }}, 1,
      4096, o.threads);
  add.integer("--seed", "Seed of weights and images (default: 1)", {.in = kEqual | kRerun, .decided = "seeds"}, 0,
              std::numeric_limits<std::int64_t>::max(), o.seed);
  add.choice("--labels", "RULE",
             "fresh (default): new labels in every step; cycled: each image keeps its label, as in old records",
             {kUsual}, o.label_rule, {{"fresh", models::LabelRule::kFresh}, {"cycled", models::LabelRule::kCycled}});
  add.number("--learning-rate", "X",
             "For one rank (default: 0.01); over 200 steps it grows with the ranks, to 0.02 at most", {kUsual}, 0, 1000,
             o.sgd.learning_rate);
  add.path("--replay", "FILE", "Play this recorded step instead of computing: a file, or gpt2 or llama, which ship",
           {kEqual | kCampaign | kRerunWithOther | kTrainOnly}, o.replay_file);
  add.integer("--replay-shrink", "Divide the recorded gradients' sizes by N; stored as model NAME-divN", {kMeasured}, 1,
              1 << 20, o.replay_shrink);
  add.path("--record-replay", "FILE", "Record this run's step for --replay",
           {.in = kRerunWithout | kTrainOnly, .decided = "nothing: one file cannot hold many cells"},
           o.record_replay_file);
}

void add_reduction(OptionTable& add, Options& o) {
  add.group("How the gradients are averaged");
  add.choice("--comm", "BACKEND",
             "auto (default), mpi, loopback (threads of one process), nccl (GPUs), none (= --schedule none)",
             {kCampaign | kRerun}, o.comm,
             {{"auto", CommBackend::kAuto},
              {"none", CommBackend::kNone},
              {"loopback", CommBackend::kLoopback},
              {"mpi", CommBackend::kMpi},
              {"nccl", CommBackend::kNccl}});
  add.integer("--ranks", "Ranks as threads of this one process", {.in = kRerun, .decided = "ranks"}, 1, 1024, o.ranks);
  add.choice("--schedule", "NAME",
             "static (default: buckets fixed at start), sharded (CPUs: each rank updates its share of the weights), "
             "negotiated (Horovod's protocol) or none",
             {.in = kEqual | kRerun | kTrainOnly, .decided = "schedules"}, o.engine.schedule,
             {{"static", Schedule::kStatic},
              {"sharded", Schedule::kSharded},
              {"negotiated", Schedule::kNegotiated},
              {"none", Schedule::kNone}});
  add.choice("--allreduce-dtype", "TYPE",
             "Reduce gradients in fp32 (default), bf16 or fp16; on CPUs they are rounded between nodes only",
             {.in = kEqual | kRerun | kTrainOnly, .decided = "allreduce_dtypes"}, o.allreduce,
             {{"fp32", DataType::kF32}, {"bf16", DataType::kBF16}, {"fp16", DataType::kF16}});
  add.flag("--fp16-allreduce", "Horovod's name for --allreduce-dtype fp16",
           {.in = kRerun | kTrainOnly, .decided = "allreduce_dtypes"}, o.allreduce, DataType::kF16);
  add.value("--algorithm", "NAME", "On CPUs: auto (default), shm, ring, hierarchical, mpi, doubling or rabenseifner",
            {.in = kOfEngine | kFactOnCpus,
             .fact = "comm.algorithm",
             .text = [&o] { return std::string(comm::name(o.comm_options.algorithm)); }},
            [&o](const std::string& text) { o.comm_options.algorithm = comm::parse_algorithm(text); });
  add.number(
      "--segment-kb", "KIB", "On CPUs: unit of pipelining of a reduction (default: 256)",
      {.in = kUsual | kFactOnCpus | kFingerprint, .compared = "--segment-kb (bytes)", .fact = "comm.segment_bytes"}, 1,
      1 << 20, o.comm_options.segment_bytes, 1024);
  add.number("--bucket-mb", "MIB", "Size of the static schedule's buckets (default: 25)",
             {.in = kOfEngine | kOfBuckets, .compared = "--bucket-mb (bytes)", .fact = "engine.bucket_bytes"}, 0,
             1 << 20, o.engine.buckets.bucket_bytes, kMebibyte);
  std::size_t& threshold_bytes = o.engine.negotiation.fusion.threshold_bytes;
  add.number("--fusion-threshold-mb", "MIB", "Fusion buffer of the negotiated schedule (default: 128; 0: no fusion)",
             {.in = kNegotiated,
              .compared = "--fusion-threshold-mb (bytes)",
              .fact = "engine.fusion_threshold_bytes",
              .variable = "HOROVOD_FUSION_THRESHOLD (bytes)"},
             0, 1 << 20, threshold_bytes, kMebibyte)
      .set_by_variable = [&threshold_bytes](const std::string& text) {
    threshold_bytes =
        static_cast<std::size_t>(parse_integer("HOROVOD_FUSION_THRESHOLD (bytes)", text, 0, std::int64_t{1} << 40));
  };
  add.number("--cycle-time-ms", "MS", "Negotiated schedule: pause after a negotiation that moved nothing (default: 1)",
             {.in = kNegotiated,
              .compared = "--cycle-time-ms (microseconds)",
              .fact = "engine.cycle_time_us",
              .variable = "HOROVOD_CYCLE_TIME (milliseconds)"},
             0, 60000, o.engine.cycle_time, 1000);
  add.integer("--cache-capacity", "Entries of the negotiation's response cache (default: 1024)",
              {.in = kNegotiated, .fact = "engine.cache_capacity", .variable = "HOROVOD_CACHE_CAPACITY (entries)"}, 0,
              1 << 30, o.engine.negotiation.cache_capacity);
  add.flag("--tune-schedule",
           "First try bucket size or fusion threshold and cycle time; on GPUs also graph, overlap, CTAs and "
           "registration; on CPUs also segment and algorithm. What is given here is not tried. Train with the fastest",
           {kUsual | kTrainOnly}, o.tuning.on, true);
  add.number("--deadline-seconds", "S",
             "Deadline of every wait for another rank, and on CPUs of a step, after the first steps (default: 60)",
             {.in = kCampaign | kRerun, .fact = "option.deadline_ms"}, 0.1, 86400, o.engine.deadline.timeout, 1000);
  add.number("--startup-deadline-seconds", "S",
             "Deadline of waits, and on CPUs of a step, during start-up, while ranks join, build the network, tune and "
             "take their first steps (default: 300, or --deadline-seconds if that is longer)",
             {.in = kCampaign | kRerun, .fact = "option.startup_deadline_ms"}, 0.1, 86400, o.startup_deadline.timeout,
             1000);
}

void add_gpu(OptionTable& add, GpuOptions& o) {
  add.group("On GPUs (ignored on CPUs)");
  add.integer("--fusion-level", "What may be fused: 0 nothing, 1 pointwise operations, 2 also batch norms (default)",
              {.in = kOfGpus | kFingerprint, .fact = "gpu.option.fusion_level"}, 0, 2, o.fusion_level);
  add.flag("--no-cuda-graph", "Enqueue every step instead of launching it as one graph",
           {.in = kOfGpus, .compared = "CUDA graphs"}, o.schedule.graph, false);
  add.flag("--no-launch-ahead", "Launch a step's graph only after the previous step has finished",
           {.in = kOfGpus, .compared = "launching ahead"}, o.schedule.ahead, false);
  add.flag("--no-overlap", "Reduce gradients only after the backward pass",
           {.in = kOfGpus | kFingerprint, .compared = "overlap", .fact = "gpu.option.overlap"}, o.schedule.overlap,
           false);
  add.flag("--deterministic", "Equal bits from run to run: only operations that add in a fixed order",
           {.in = kOfGpus | kFingerprint, .fact = "gpu.option.deterministic"}, o.deterministic, true);
  add.number("--loss-scale", "X", "Factor of the loss in fp16 (default: dynamic)", {kOfGpus}, 1, 1 << 24, o.loss_scale);
  add.flag("--tune", "First time cuDNN engines and fusions (up to minutes); all ranks use the winners of rank 0",
           {kOfGpus}, o.tune, true);
  add.path("--tuning-folder", "FOLDER",
           "Folder in which --tune and --tune-schedule (also on CPUs) keep winners and look for them",
           {kEqual | kCampaign | kRerunWithOther}, o.tuning_folder);
  add.integer("--nccl-max-ctas", "Largest number of thread blocks per reduction (default: NCCL's choice)", {kOfGpus}, 1,
              64, o.nccl.max_ctas);
  add.flag("--no-nccl-registration", "Plain memory for gradients, not registered with NCCL",
           {.in = kOfGpus | kFingerprint, .compared = "NCCL registration", .fact = "gpu.option.nccl_registration"},
           o.nccl.register_memory, false);
  add.flag("--share-gpus", "Several ranks may have the same GPU (for tests; NCCL 2.30 and newer)",
           {.in = kOfGpus | kFingerprint | kTrainOnly, .fact = "gpu.option.share_gpus"}, o.nccl.share_gpus, true);
}

void add_measurement(OptionTable& add, Options& o) {
  add.group("How it is measured");
  add.integer("--num-warmup-batches", "Steps before measuring (default: until the step time is steady)",
              {.in = kMeasured,
               .fact = "option.num_warmup_batches",
               .text = [&o] { return o.num_warmup_batches ? value_text(*o.num_warmup_batches) : "until steady"; }},
              0, kIntMax, o.num_warmup_batches);
  add.integer("--num-batches-per-iter", "Steps per sample (default: 1)", {kMeasured}, 1, kIntMax,
              o.num_batches_per_iter);
  add.integer("--num-iters", "Samples (default: until the interval of the median is narrow enough)",
              {.in = kMeasured,
               .fact = "option.num_iters",
               .text = [&o] { return o.num_iters ? value_text(*o.num_iters) : "until narrow"; }},
              1, kIntMax, o.num_iters);
  add.number("--target-interval", "X", "Relative half width of that interval (default: 0.02)",
             {.in = kMeasured, .fact = "option.target_interval"}, 1e-4, 1, o.target_interval);
  add.number("--max-time", "S", "Cap on the measurement in seconds, warm-up included (default: 300)",
             {.in = kMeasured, .fact = "option.max_time_s"}, 1, 1e7, o.max_time);
  add.flag("--efficiency", "Also measure one rank alone and all ranks not reducing",
           {.in = kEqual | kRerun | kTrainOnly, .fact = "option.efficiency", .decided = "efficiency"}, o.efficiency,
           true);
  add.flag("--fit", "With --efficiency: lower batch, then image size, until 12 rounds fit",
           {.in = kEqual | kRerun, .decided = "weak.batch_size or strong.global_batch"}, o.fit, true);
  add.flag("--profile", "Time every operation; on a GPU, also show its bound (never compare such a run with others)",
           {.in = kEqual | kRerun | kTrainOnly, .decided = "nothing: no table takes profiled runs"}, o.profile, true);
  add.flag("--no-check", "Do not compare the reduced gradients with an independent sum",
           {.in = kMeasured, .compared = "check", .fact = "option.check"}, o.check, false);
}

void add_output(OptionTable& add, Options& o) {
  add.group("Where results go");
  add.path("--db", "FILE", "SQLite store, added to if it exists (default: hvd_bench.db)",
           {.in = kRerunWithout, .decided = "the campaign's folder"}, o.db_file);
  add.labels({.in = kRerun, .decided = "the campaign", .pattern = ".*"}, o.labels);
  add.value("--no-db", "", "Store nothing", {.in = kRerunWithout, .decided = "the campaign's folder"},
            [](const std::string&) {});
  add.flag("--json", "One JSON document on standard output, everything else on standard error",
           {.in = kRerunWithout, .decided = "nothing: stores hold everything"}, o.json, true);
  add.flag("--quiet", "Print the line \"total images/sec: ...\" and nothing else",
           {.in = kRerunWithout | kTrainOnly, .decided = "nothing: stores hold everything"}, o.quiet, true);
  add.flag("--verbose", "Also print what explains the figures: memory, exposed communication in three ways, warm-up",
           {.in = kRerunWithout | kTrainOnly, .decided = "nothing: stores hold everything"}, o.verbose, true);
  add.path("--timeline-filename", "FILE", "Chrome trace per rank (never compare such a run with others)",
           {.in = kEqual | kRerunWithOther | kTrainOnly,
            .decided = "nothing: one file cannot hold many cells",
            .text = [&o] { return o.engine.timeline_filename.empty() ? "off" : "on"; },
            .variable = "HOROVOD_TIMELINE"},
           o.engine.timeline_filename);
}

}  // namespace

OptionTable training_table(Options& options) {
  OptionTable table;
  add_training(table, options);
  add_reduction(table, options);
  add_gpu(table, options.gpu);
  add_measurement(table, options);
  add_output(table, options);
  return table;
}

OptionTable validation_table(ValidateOptions& options) {
  OptionTable table;
  table.group("How it is validated");
  table.integer("--steps", "Steps whose times are compared (default: 30); a few more come before", {}, kMinSteps, 10000,
                options.steps);
  table.value(
      "--threshold", "PERCENT", "By how much a rank must be slower to be called slow (default: 2)", {},
      [&options](const std::string& text) { options.threshold = parse_number("--threshold", text, 1e-3, 999) / 100; });
  return table;
}

void settle_validation(Options& options) {
  options.engine.schedule = Schedule::kNone;
  options.engine.timeline_filename.clear();  // HOROVOD_TIMELINE may have set it; writing a trace disturbs the times
  options.gpu.deterministic = true;
}

RunSettings settings_of(const Options& options, const Setup& setup) {
  // The first difference is named, so what decides about other settings comes first: a rank whose device differs
  // differs in its batch too. These are the program and what settle() decides from several options.
  RunSettings settings{{"the program", fmt::format("{} of commit {}", build_info().version, build_info().git_commit)},
                       {"--model", setup.model.model},
                       {"--device", setup.device == Device::kCuda ? "cuda" : std::string(setup.device_name())},
                       {"--batch-size", std::to_string(setup.model.batch_size)},
                       {"--image-size", std::to_string(setup.model.image_size)},
                       {"--replay", setup.replay ? "profile " + setup.replay_hash : "off"},
                       {"--dtype", setup.compute_name()},
                       {std::string(kMaxCpuIsa), vector_level_limit().empty() ? "not set" : vector_level_limit()},
                       {"--allreduce-dtype", std::string(hvd::name(setup.allreduce))},
                       {"--schedule", std::string(hvd::name(setup.schedule))},
                       {"the command", setup.equal_batches ? "validate" : "train"}};
  Options rows = options;
  training_table(rows).compare(settings, setup.device == Device::kCuda);
  settings.emplace_back("--bucket-mb given", setup.tuning.buckets_given ? "on" : "off");
  return settings;
}

}  // namespace hvd::bench
