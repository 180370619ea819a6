#include "bench/cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <limits>
#include <utility>

#include "bench/cli/registrar.h"
#include "bench/cli/validate_options.h"
#include "bench/cli/values.h"
#include "bench/store/build_info.h"
#include "bench/world/unused_settings.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

constexpr const char* kDescription =
    "hvd_bench measures how well synchronous data-parallel training scales on this machine or cluster, and what\n"
    "eats the rest. It trains a network on synthetic images, averages the gradients over all ranks, and stores\n"
    "every sample with its provenance in a SQLite file.";

constexpr const char* kFooter = R"(Examples:
  hvd_bench --model resnet101                       one rank, until the result is steady
  mpirun -n 2 hvd_bench --model vgg16 --efficiency  two ranks, their efficiency and what is lost where
  srun --mpi=pmix hvd_bench --model inception3      the ranks of a Slurm job
  hvd_bench --model resnet50 --ranks 2 --json       two ranks as threads of one process, machine-readable
  mpirun -n 4 hvd_bench validate --model resnet50   do all ranks compute the same bits, equally fast?
  hvd_bench coll --ranks 2 -b 1K -e 16M             how fast are the collective operations?
  hvd_bench doctor                                  is this machine what it should be?

Environment (the command line wins): HOROVOD_FUSION_THRESHOLD (bytes), HOROVOD_CYCLE_TIME (ms),
  HOROVOD_CACHE_CAPACITY (entries; these three with --schedule negotiated), HOROVOD_TIMELINE (file); HVD_MAX_CPU_ISA (SSE2, AVX2, AVX512: the widest vectors).
Exit codes: 0 good, 1 failed check, 2 usage or I/O, 3 undecided (validate), 5 a rank lost or a deadline passed, 6 ranks disagree,
  7 interrupted, 8 out of memory or a library failed, 9 a defect of hvd_bench.)";

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();

std::chrono::milliseconds milliseconds(double value) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(value));
}

std::size_t mebibytes(double value) { return static_cast<std::size_t>(value * kMebibyte); }

/// Replaces '_' in option names by '-': --batch_size=8 becomes --batch-size=8. Values stay unchanged.
std::string canonical(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto end = argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin(), end, '_', '-');
  return argument;
}

/// Records which options the user gave. Some checks of reconcile() need this, because Options does not show it.
struct Given {
  bool schedule = false, startup_deadline = false, db = false, no_db = false;
};

void read_environment(const Environment& environment, Options& options) {
  if (const auto text = value_of(environment, "HOROVOD_FUSION_THRESHOLD"); !text.empty()) {
    options.engine.negotiation.fusion.threshold_bytes =
        static_cast<std::size_t>(parse_integer("HOROVOD_FUSION_THRESHOLD (bytes)", text, 0, std::int64_t{1} << 40));
  }
  if (const auto text = value_of(environment, "HOROVOD_CYCLE_TIME"); !text.empty()) {
    options.engine.cycle_time = std::chrono::microseconds(
        static_cast<std::int64_t>(1000 * parse_number("HOROVOD_CYCLE_TIME (milliseconds)", text, 0, 60000)));
  }
  if (const auto text = value_of(environment, "HOROVOD_CACHE_CAPACITY"); !text.empty()) {
    options.engine.negotiation.cache_capacity =
        static_cast<std::size_t>(parse_integer("HOROVOD_CACHE_CAPACITY (entries)", text, 0, std::int64_t{1} << 30));
  }
  options.engine.timeline_filename = std::string(value_of(environment, "HOROVOD_TIMELINE"));
}

/// "tf32" sets the type fp32 and options.gpu.tf32. settle() checks later whether this machine supports tf32.
void parse_compute_type(const std::string& text, Options& options) {
  constexpr std::array kTypes{DataType::kF32, DataType::kF32, DataType::kF16, DataType::kBF16};
  const std::size_t word = parse_word("--dtype", text, {"fp32", "tf32", "fp16", "bf16"});
  options.compute = kTypes[word];
  options.gpu.tf32 = word == 1;
}

DataType parse_allreduce_type(const std::string& text) {
  constexpr std::array kTypes{DataType::kF32, DataType::kBF16, DataType::kF16};
  return kTypes[parse_word("--allreduce-dtype", text, {"fp32", "bf16", "fp16"})];
}

Device parse_device(const std::string& text) {
  constexpr std::array kDevices{Device::kAuto, Device::kCpu, Device::kCuda};
  return kDevices[parse_word("--device", text, {"auto", "cpu", "cuda"})];
}

void parse_comm(const std::string& text, Options& options) {
  constexpr std::array kBackends{CommBackend::kAuto, CommBackend::kNone, CommBackend::kLoopback, CommBackend::kMpi,
                                 CommBackend::kNccl};
  options.comm = kBackends[parse_word("--comm", text, {"auto", "none", "loopback", "mpi", "nccl"})];
  options.host_comm = options.comm == CommBackend::kMpi || options.comm == CommBackend::kLoopback;
}

models::LabelRule parse_label_rule(const std::string& text) {
  constexpr std::array kRules{models::LabelRule::kFresh, models::LabelRule::kCycled};
  return kRules[parse_word("--labels", text, {"fresh", "cycled"})];
}

Schedule parse_schedule(const std::string& text) {
  constexpr std::array kSchedules{Schedule::kStatic, Schedule::kSharded, Schedule::kNegotiated, Schedule::kNone};
  return kSchedules[parse_word("--schedule", text, {"static", "sharded", "negotiated", "none"})];
}

void register_training(Registrar add, Options& o) {
  add.group("What to train");
  add.value("--model", "NAME", "inception3, resnet50, resnet101 (default) or vgg16",
            [&o](const std::string& text) { o.model = text; });
  add.integer("--batch-size", "Images per rank and step (default: 64 on a GPU, 8 on a CPU)", 1, 1 << 16, o.batch_size);
  add.integer("--image-size", "Height and width of the images (default: the network's own, 224 or 299)", 1, 1 << 14,
              o.image_size);
  add.integer("--classes", "Classes of the last layer (default: 1000)", 2, 1 << 20, o.classes);
  add.flag("--auxiliary-head", "Inception V3 with its auxiliary classifier", [&o] { o.auxiliary_head = true; });
  add.value("--dtype", "TYPE", "Compute in fp32 (default), bf16, tf32 or fp16 (the last two: GPU only)",
            [&o](const std::string& text) { parse_compute_type(text, o); });
  add.flag("--no-winograd", "On CPUs in fp32: direct 3x3 convolutions, slower, with smaller rounding errors",
           [&o] { o.winograd = false; });
  add.value("--device", "DEVICE", "auto (default: a GPU if one can be used), cpu or cuda",
            [&o](const std::string& text) { o.device = parse_device(text); });
  add.integer("--threads", "Compute threads per rank (default: the rank's share of the cores)", 1, 4096, o.threads);
  add.value("--seed", "N", "Seed of weights and images (default: 1)", [&o](const std::string& text) {
    o.seed = static_cast<std::uint64_t>(parse_integer("--seed", text, 0, std::numeric_limits<std::int64_t>::max()));
  });
  add.value("--labels", "RULE",
            "fresh (default): new labels in every step; cycled: each image keeps its label, as in old records",
            [&o](const std::string& text) { o.label_rule = parse_label_rule(text); });
  add.number("--learning-rate", "X",
             "For one rank (default: 0.01); over 200 steps it grows with the ranks, to 0.02 at most", 0, 1000,
             [&o](double x) { o.learning_rate = x; });
  add.file("--replay", "Play a recorded step's times instead of computing", o.replay_file);
  add.integer("--replay-shrink", "Divide the recorded gradients' sizes by N; stored as model NAME-divN", 1, 1 << 20,
              o.replay_shrink);
  add.file("--record-replay", "Record this run's step for --replay", o.record_replay_file);
}

void register_reduction(Registrar add, Options& o, Given& given) {
  add.group("How the gradients are averaged");
  add.value("--comm", "BACKEND",
            "auto (default), mpi, loopback (threads of one process), nccl (GPUs), none (= --schedule none)",
            [&o](const std::string& text) { parse_comm(text, o); });
  add.integer("--ranks", "Ranks as threads of this one process", 1, 1024, o.ranks);
  add.value("--schedule", "NAME",
            "static (default: buckets fixed at start), sharded (CPUs: each rank updates its share of the weights), "
            "negotiated (Horovod's protocol) or none",
            [&o, &given](const std::string& text) {
              o.engine.schedule = parse_schedule(text);
              given.schedule = true;
            });
  add.value("--allreduce-dtype", "TYPE",
            "Reduce gradients in fp32 (default), bf16 or fp16; on CPUs they are rounded between nodes only",
            [&o](const std::string& text) { o.allreduce = parse_allreduce_type(text); });
  add.flag("--fp16-allreduce", "Horovod's name for --allreduce-dtype fp16", [&o] { o.allreduce = DataType::kF16; });
  add.value("--algorithm", "NAME", "On CPUs: auto (default), shm, ring, hierarchical, mpi, doubling or rabenseifner",
            [&o](const std::string& text) { o.comm_options.algorithm = comm::parse_algorithm(text); });
  add.number("--segment-kb", "KIB", "On CPUs: unit of pipelining of a reduction (default: 256)", 1, 1 << 20,
             [&o](double x) { o.comm_options.segment_bytes = static_cast<std::size_t>(x * 1024); });
  add.number("--bucket-mb", "MIB", "Size of the static schedule's buckets (default: 25)", 0, 1 << 20, [&o](double x) {
    o.engine.buckets.bucket_bytes = mebibytes(x);
    o.tuning.buckets_given = true;
  });
  add.number("--fusion-threshold-mb", "MIB", "Fusion buffer of the negotiated schedule (default: 128; 0: no fusion)", 0,
             1 << 20, [&o](double x) { o.engine.negotiation.fusion.threshold_bytes = mebibytes(x); });
  add.number("--cycle-time-ms", "MS", "Negotiated schedule: pause after a negotiation that moved nothing (default: 1)",
             0, 60000,
             [&o](double x) { o.engine.cycle_time = std::chrono::microseconds(static_cast<std::int64_t>(1000 * x)); });
  add.integer("--cache-capacity", "Entries of the negotiation's response cache (default: 1024)", 0, 1 << 30,
              o.engine.negotiation.cache_capacity);
  add.flag("--tune-schedule",
           "First try bucket size or fusion threshold and cycle time; on GPUs also graph, overlap, CTAs and "
           "registration; on CPUs also segment and algorithm. What is given here is not tried. Train with the fastest",
           [&o] { o.tuning.on = true; });
  add.number("--deadline-seconds", "S",
             "Deadline of every wait for another rank, and on CPUs of a step, after the first steps (default: 60)", 0.1,
             86400, [&o](double x) { o.engine.deadline.timeout = milliseconds(1000 * x); });
  add.number("--startup-deadline-seconds", "S",
             "Deadline of waits, and on CPUs of a step, during start-up, while ranks join, build the network, tune and "
             "take their first steps (default: 300, or --deadline-seconds if that is longer)",
             0.1, 86400, [&o, &given](double x) {
               o.startup_deadline.timeout = milliseconds(1000 * x);
               given.startup_deadline = true;
             });
}

void register_gpu(Registrar add, GpuOptions& o) {
  add.group("On GPUs (ignored on CPUs)");
  add.integer("--fusion-level", "What may be fused: 0 nothing, 1 pointwise operations, 2 also batch norms (default)", 0,
              2, o.fusion_level);
  add.flag("--no-cuda-graph", "Enqueue every step instead of launching it as one graph",
           [&o] { o.schedule.graph = false; });
  add.flag("--no-launch-ahead", "Launch a step's graph only after the previous step has finished",
           [&o] { o.schedule.ahead = false; });
  add.flag("--no-overlap", "Reduce gradients only after the backward pass", [&o] { o.schedule.overlap = false; });
  add.flag("--deterministic", "Equal bits from run to run: only operations that add in a fixed order",
           [&o] { o.deterministic = true; });
  add.number("--loss-scale", "X", "Factor of the loss in fp16 (default: dynamic)", 1, 1 << 24,
             [&o](double x) { o.loss_scale = x; });
  add.flag("--tune", "First time cuDNN engines and fusions (up to minutes); all ranks use the winners of rank 0",
           [&o] { o.tune = true; });
  add.folder("--tuning-folder",
             "Folder in which --tune and --tune-schedule (also on CPUs) keep winners and look for them",
             o.tuning_folder);
  add.integer("--nccl-max-ctas", "Largest number of thread blocks per reduction (default: NCCL's choice)", 1, 64,
              o.nccl.max_ctas);
  add.flag("--no-nccl-registration", "Plain memory for gradients, not registered with NCCL",
           [&o] { o.nccl.register_memory = false; });
  add.flag("--share-gpus", "Several ranks may have the same GPU (for tests; NCCL 2.30 and newer)",
           [&o] { o.nccl.share_gpus = true; });
}

void register_measurement(Registrar add, Options& o) {
  add.group("How it is measured");
  add.integer("--num-warmup-batches", "Steps before measuring (default: until the step time is steady)", 0, kIntMax,
              o.num_warmup_batches);
  add.integer("--num-batches-per-iter", "Steps per sample (default: 1)", 1, kIntMax, o.num_batches_per_iter);
  add.integer("--num-iters", "Samples (default: until the interval of the median is narrow enough)", 1, kIntMax,
              o.num_iters);
  add.number("--target-interval", "X", "Relative half width of that interval (default: 0.02)", 1e-4, 1,
             [&o](double x) { o.target_interval = x; });
  add.number("--max-time", "S", "Cap on the measurement in seconds, warm-up included (default: 300)", 1, 1e7,
             [&o](double x) { o.max_time = std::chrono::seconds(static_cast<std::int64_t>(x)); });
  add.flag("--efficiency", "Also measure one rank alone and all ranks not reducing", [&o] { o.efficiency = true; });
  add.flag("--fit", "With --efficiency: lower batch, then image size, until 12 rounds fit", [&o] { o.fit = true; });
  add.flag("--profile", "Time every operation; on a GPU, also show its bound (never compare such a run with others)",
           [&o] { o.profile = true; });
  add.flag("--no-check", "Do not compare the reduced gradients with an independent sum", [&o] { o.check = false; });
}

/// Returns KEY of KEY=VALUE. Errors: invalid_argument.
std::string label_key(const std::string& text) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789_.-";
  const std::size_t end = text.find('=');
  if (end == std::string::npos || end == 0 || text.find_first_not_of(kAllowed) != end) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("--label: '{}' is not KEY=VALUE with a KEY of a-z, 0-9, '_', '.', '-'", text));
  }
  return text.substr(0, end);
}

void register_output(Registrar add, Options& o, Given& given) {
  add.group("Where results go");
  add.file("--db", "SQLite store, added to if it exists (default: hvd_bench.db)", o.db_file);
  add.repeated(
      "--label", "KEY=VALUE", "Stored with the run and never compared (may be given several times)",
      [&o](const std::string& text) { o.labels.insert_or_assign(label_key(text), text.substr(text.find('=') + 1)); });
  add.flag("--no-db", "Store nothing", [&given] { given.no_db = true; });
  add.flag("--json", "One JSON document on standard output, everything else on standard error",
           [&o] { o.json = true; });
  add.flag("--quiet", "Print the line \"total images/sec: ...\" and nothing else", [&o] { o.quiet = true; });
  add.file("--timeline-filename", "Chrome trace per rank (never compare such a run with others)",
           o.engine.timeline_filename);
}

/// Removes the second of the two blank lines that CLI11 prints between groups.
std::string without_double_gaps(std::string text) {
  for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
  return text;
}

/// Parses the command line of `hvd_bench coll`, which has its own options.
CommandLine parse_coll_line(const std::vector<std::string>& argv) {
  CommandLine line;
  line.coll = parse_coll(argv);
  line.command = line.coll.help.empty() ? Command::kColl : Command::kPrint;
  line.text = without_double_gaps(line.coll.help);
  return line;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

void refuse_rest(const CLI::App& app, const std::vector<std::string>& rest) {
  if (rest.empty()) return;
  const std::string& word = rest.front();
  if (word.starts_with("-")) {
    throw Error(Errc::kInvalidArgument, fmt::format("{}: there is no such option{}; see hvd_bench --help", word,
                                                    did_you_mean(word.substr(0, word.find('=')), option_names(app))));
  }
  const std::vector<std::string> commands{"train", "validate", "coll", "doctor", "stored"};
  if (std::find(commands.begin(), commands.end(), word) != commands.end()) {
    throw Error(Errc::kInvalidArgument, fmt::format("'{}': one command at a time; see hvd_bench --help", word));
  }
  throw Error(Errc::kInvalidArgument,
              fmt::format("'{}': there is no such command{}; options begin with --, see hvd_bench --help", word,
                          did_you_mean(word, commands)));
}

/// Refuses options that do not belong to `command`. `known` is the only option that the command takes; "" if it takes
/// none.
void refuse_foreign(const CLI::App& app, const std::string& command, const std::string& known) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && !option->check_lname(known)) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{}: not an option of 'hvd_bench {}', which takes {}", option->get_name(), command,
                              known.empty() ? "none" : "--" + known));
    }
  }
}

/// Checks combinations of options, and stores equivalent options in one form.
void reconcile(Options& options, const Given& given) {
  if (options.comm == CommBackend::kNone) {
    if (given.schedule && options.engine.schedule != Schedule::kNone) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("--comm none reduces nothing, but --schedule {} does; leave one of them out",
                              name(options.engine.schedule)));
    }
    options.engine.schedule = Schedule::kNone;
    options.comm = CommBackend::kAuto;
  }
  if (given.no_db && given.db) {
    throw Error(Errc::kInvalidArgument, "--db stores the results, --no-db does not; leave one of them out");
  }
  if (given.no_db) options.db_file.clear();
  if (options.ranks > 0 && options.comm == CommBackend::kMpi) {
    throw Error(
        Errc::kInvalidArgument,
        "--ranks makes ranks of this one process, --comm mpi takes them from mpirun or srun; leave one of them out");
  }
  if (options.efficiency && options.engine.schedule == Schedule::kNone) {
    throw Error(Errc::kInvalidArgument,
                "--efficiency needs a run that reduces; it measures the one without reduction by itself, so leave out "
                "--comm none and --schedule none");
  }
  if (!options.replay_file.empty() && !options.record_replay_file.empty()) {
    throw Error(Errc::kInvalidArgument,
                "--record-replay records a computed step, --replay computes none; leave one out");
  }
  if (options.replay_shrink > 1 && options.replay_file.empty()) {
    throw Error(Errc::kInvalidArgument,
                "--replay-shrink shrinks the gradients of a recorded step: give --replay FILE, or leave it out");
  }
  if (options.validate) settle_validation(options);
  options.engine.deadline.set_by = "--deadline-seconds";
  options.gpu.nccl.deadline = options.engine.deadline;
  if (!given.startup_deadline) {
    options.startup_deadline.timeout = std::max(options.startup_deadline.timeout, options.engine.deadline.timeout);
  }
  const std::size_t bucket = options.engine.buckets.bucket_bytes;
  options.engine.buckets.first_bucket_bytes = std::min(options.engine.buckets.first_bucket_bytes, bucket);
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& argv, const Environment& environment) {
  if (argv.size() > 1 && argv[1] == "coll") return parse_coll_line(argv);
  CommandLine result;
  Options& options = result.options;
  options.argv = argv;
  Given given;

  CLI::App app(kDescription, "hvd_bench");
  app.set_help_flag("-h,--help", "Print this and exit")->group("Help");
  app.set_version_flag("--version", version_text(), "Print the version and exit")->group("Help");
  app.footer(kFooter);
  app.get_formatter()->column_width(32);
  app.get_formatter()->label("OPTIONS", "options");
  app.get_formatter()->label("SUBCOMMAND", "train | validate | coll | doctor | stored");
  app.get_formatter()->label("Subcommands", "Commands");
  app.fallthrough();
  app.allow_extras();
  app.require_subcommand(0, 1);
  app.add_subcommand("train", "Train and measure (the default)")->fallthrough();
  CLI::App* const validate =
      app.add_subcommand("validate",
                         "Do all ranks compute the same bits, equally fast? (see hvd_bench validate --help)")
          ->fallthrough();
  ValidateOptions validation;
  register_validation(*validate, validation);
  const CLI::App* const coll =
      app.add_subcommand("coll", "Time collective operations and check their results (see hvd_bench coll --help)");
  const CLI::App* const doctor =
      app.add_subcommand("doctor", "Say what is here, what is missing, and how to get it")->fallthrough();
  CLI::App* const stored =
      app.add_subcommand("stored", "List the values of a label whose runs in these stores are complete and untraced");
  stored->add_option("KEY", result.label, "Key of --label")->required();
  stored->add_option("STORE", result.files, "Files that --db wrote")->required();
  Registrar add(app);
  register_training(add, options);
  register_reduction(add, options, given);
  register_gpu(add, options.gpu);
  register_measurement(add, options);
  register_output(add, options, given);

  // Read the environment before the command line, which overrides it. --help and doctor must work even if the
  // environment holds bad values, so an error of read_environment() is thrown later.
  std::exception_ptr environment_problem;
  try {
    read_environment(environment, options);
  } catch (const Error&) {
    environment_problem = std::current_exception();
  }
  std::vector<std::string> arguments;  // in reverse order, as CLI11 expects
  for (std::size_t i = argv.size(); i > 1; --i) arguments.push_back(canonical(argv[i - 1]));
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    result.command = Command::kPrint;
    result.text = without_double_gaps(app.help());
    return result;
  } catch (const CLI::CallForVersion&) {
    result.command = Command::kPrint;
    result.text = version_text() + "\n";
    return result;
  } catch (const CLI::ParseError& error) {
    throw Error(Errc::kInvalidArgument, std::string(error.what()) + "; see hvd_bench --help");
  }
  if (coll->parsed()) {  // `coll` as the first word was handled above
    throw Error(Errc::kInvalidArgument, "'coll' has options of its own and comes first: hvd_bench coll [options]");
  }
  refuse_rest(app, app.remaining(true));
  if (doctor->parsed()) {
    refuse_foreign(app, "doctor", "db");
    result.command = Command::kDoctor;
    if (app.get_option("--db")->count() == 0) options.db_file.clear();
    return result;
  }
  if (stored->parsed()) {
    refuse_foreign(app, "stored", "");
    result.command = Command::kStored;
    return result;
  }
  if (environment_problem) std::rethrow_exception(environment_problem);
  given.db = app.get_option("--db")->count() > 0;
  if (validate->parsed()) {
    refuse_training_only(app);
    options.validate = validation;
  }
  reconcile(options, given);
  const auto on_the_line = [&app](const char* option) { return app.get_option(option)->count() > 0; };
  if (!options.validate) options.unused = unused_settings(on_the_line, environment, options.engine.schedule);
  return result;
}

}  // namespace hvd::bench
