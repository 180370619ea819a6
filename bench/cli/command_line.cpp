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
#include "bench/store/build_info.h"
#include "bench/world/training_options.h"
#include "engine/base/error.h"
#include "engine/base/json.h"

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

constexpr const char* kValidateFooter =
    "Every rank trains the same batches from the same weights, without reductions. Ranks that share cores take\n"
    "turns. Checksums of gradients and weights, and the times of steps, are compared over ranks of equal hardware\n"
    "and software. On GPUs it implies --deterministic.\n\n"
    "Takes the options of training that say what is trained, on which ranks, and where results go: hvd_bench "
    "--help.\n"
    "Exit codes: 0 all ranks agree, 1 a rank differs or is slow, 3 a rank may be slow; else as in training.";

/// Replaces '_' in option names by '-': --batch_size=8 becomes --batch-size=8. Values stay unchanged.
std::string canonical(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto end = argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin(), end, '_', '-');
  return argument;
}

void read_environment(const Environment& environment, OptionTable& table) {
  for (const OptionRow& row : table.rows()) {
    const std::string text(value_of(environment, row.variable()));
    if (!text.empty()) row.set_by_variable(text);
  }
}

/// Returns the options and variables that were given and that `schedule` does not use.
std::vector<std::string> unused_settings(OptionTable& table, const Environment& environment, Schedule schedule) {
  const bool negotiates = schedule == Schedule::kNegotiated;
  const bool has_buckets = schedule == Schedule::kStatic || schedule == Schedule::kSharded;
  std::vector<std::string> unused;
  for (const OptionRow& row : table.rows()) {
    if ((!row.is(kOfBuckets) || has_buckets) && (!row.is(kOfNegotiation) || negotiates)) continue;
    if (row.given) {
      unused.push_back(row.name());
    } else if (!value_of(environment, row.variable()).empty()) {
      unused.push_back(row.variable());
    }
  }
  return unused;
}

/// One line of JSON. "rerun": what `hvdb rerun` does with the option of a stored command.
std::string describe(const OptionRow& row) {
  const char* rerun = row.is(kRerun)            ? "repeat"
                      : row.is(kRerunWithout)   ? "leave out"
                      : row.is(kRerunWithOther) ? "name another file"
                                                : "refuse";
  std::string words;
  for (const std::string& word : row.words) words += (words.empty() ? "" : ", ") + json_string(word);
  return fmt::format(
      R"({{"names": {}, "value": {}, "group": {}, "help": {}, "low": {}, "high": {}, "words": [{}], "train_only": {}, )"
      R"("equal_on_all_ranks": {}, "fact": {}, "in_fingerprint": {}, "campaign": {}, "decided_by": {}, "rerun": {}, )"
      R"("pattern": {}}})",
      json_string(row.names), json_string(row.placeholder), json_string(row.group), json_string(row.help),
      row.low.empty() ? "null" : row.low, row.high.empty() ? "null" : row.high, words, row.is(kTrainOnly),
      row.is(kEqual), json_string(row.uses.fact), row.is(kFingerprint), row.is(kCampaign),
      json_string(row.uses.decided), json_string(rerun), json_string(row.is(kRerun) ? row.uses.pattern : ""));
}

/// The options of `train`, `validate` and `coll` as one JSON document with a line for each, results/options.json.
std::string describe_options() {
  Options options;
  ValidateOptions validate;
  coll::CollOptions coll;
  std::string text;
  const auto add = [&text](const char* command, OptionTable table) {
    text += fmt::format("{}\"{}\": [\n", text.empty() ? "{" : "\n],\n", command);
    for (const OptionRow& row : table.rows()) text += (text.ends_with("[\n") ? "" : ",\n") + describe(row);
  };
  add("train", training_table(options));
  add("validate", validation_table(validate));
  add("coll", coll::coll_table(coll));
  return text + "\n]}\n";
}

/// Removes the second of the two blank lines that CLI11 prints between groups.
std::string without_double_gaps(std::string text) {
  for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
  return text;
}

/// The commands that have options of their own.
constexpr std::array<std::string_view, 3> kOwnCommands{"coll", "simulate", "analyse"};

/// Parses the command line of one of kOwnCommands.
CommandLine parse_own_line(const std::vector<std::string>& argv) {
  CommandLine line;
  if (argv[1] == "coll") {
    line.command = Command::kColl;
    line.coll = parse_coll(argv);
    line.text = without_double_gaps(line.coll.help);
  } else if (argv[1] == "analyse") {
    line.command = Command::kAnalyse;
    line.analyse = parse_analyse(argv);
    line.text = without_double_gaps(line.analyse.help);
  } else {
    line.command = Command::kSimulate;
    line.simulate = parse_simulate(argv);
    line.text = without_double_gaps(line.simulate.help);
  }
  if (!line.text.empty()) line.command = Command::kPrint;
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
  const std::vector<std::string> commands{"train", "validate", "coll", "doctor", "stored", "simulate", "analyse"};
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

/// Errors: invalid_argument for the first given option that has no meaning for `validate`: a validation reduces
/// nothing, computes each step, and takes a fixed number of steps.
void refuse_training_only(OptionTable& table) {
  for (const OptionRow& row : table.rows()) {
    if (!row.given || !row.is(kTrainOnly)) continue;
    throw Error(Errc::kInvalidArgument, row.name() +
                                            ": not an option of 'hvd_bench validate', which reduces nothing and " +
                                            "trains --steps N on every rank; leave it out");
  }
}

/// Checks combinations of options, and stores equivalent options in one form.
void reconcile(Options& options, const OptionTable& table) {
  const bool no_db = table.given("--no-db");
  options.host_comm = options.comm == CommBackend::kMpi || options.comm == CommBackend::kLoopback;
  options.tuning.buckets_given = table.given("--bucket-mb");
  if (options.comm == CommBackend::kNone) {
    if (table.given("--schedule") && options.engine.schedule != Schedule::kNone) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("--comm none reduces nothing, but --schedule {} does; leave one of them out",
                              name(options.engine.schedule)));
    }
    options.engine.schedule = Schedule::kNone;
    options.comm = CommBackend::kAuto;
  }
  if (no_db && table.given("--db")) {
    throw Error(Errc::kInvalidArgument, "--db stores the results, --no-db does not; leave one of them out");
  }
  if (no_db) options.db_file.clear();
  if (options.quiet && options.verbose) {
    throw Error(Errc::kInvalidArgument, "--quiet prints one line, --verbose more than usual; leave one of them out");
  }
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
  if (!table.given("--startup-deadline-seconds")) {
    options.startup_deadline.timeout = std::max(options.startup_deadline.timeout, options.engine.deadline.timeout);
  }
  const std::size_t bucket = options.engine.buckets.bucket_bytes;
  options.engine.buckets.first_bucket_bytes = std::min(options.engine.buckets.first_bucket_bytes, bucket);
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& argv, const Environment& environment) {
  if (argv.size() > 1 && std::find(kOwnCommands.begin(), kOwnCommands.end(), argv[1]) != kOwnCommands.end()) {
    return parse_own_line(argv);
  }
  CommandLine result;
  if (argv.size() == 2 && argv[1] == "--describe-options") {
    result.command = Command::kPrint;
    result.text = describe_options();
    return result;
  }
  Options& options = result.options;
  options.argv = argv;
  OptionTable table = training_table(options);

  CLI::App app(kDescription, "hvd_bench");
  app.set_help_flag("-h,--help", "Print this and exit")->group("Help");
  app.set_version_flag("--version", version_text(), "Print the version and exit")->group("Help");
  app.footer(kFooter);
  app.get_formatter()->column_width(32);
  app.get_formatter()->label("OPTIONS", "options");
  app.get_formatter()->label("SUBCOMMAND", "train | validate | coll | doctor | stored | simulate | analyse");
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
  OptionTable of_validate = validation_table(validation);
  validate->footer(kValidateFooter);
  register_options(*validate, of_validate);
  app.add_subcommand("coll", "Time collective operations and check their results (see hvd_bench coll --help)");
  const CLI::App* const doctor =
      app.add_subcommand("doctor", "Say what is here, what is missing, and how to get it")->fallthrough();
  CLI::App* const stored =
      app.add_subcommand("stored", "List the values of a label whose runs in these stores are complete and untraced");
  stored->add_option("KEY", result.label, "Key of --label")->required();
  stored->add_option("STORE", result.files, "Files that --db wrote")->required();
  app.add_subcommand("simulate", "Simulate steps at given costs, for hvdb predict (see hvd_bench simulate --help)");
  app.add_subcommand("analyse", "Explain samples of another program's training (see hvd_bench analyse --help)");
  register_options(app, table);

  // Read the environment before the command line, which overrides it. --help and doctor must work even if the
  // environment holds bad values, so an error of read_environment() is thrown later.
  std::exception_ptr environment_problem;
  try {
    read_environment(environment, table);
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
  for (const std::string_view own : kOwnCommands) {  // as the first word they were handled above
    if (!app.got_subcommand(std::string(own))) continue;
    throw Error(Errc::kInvalidArgument,
                fmt::format("'{0}' has options of its own and comes first: hvd_bench {0} [options]", own));
  }
  refuse_rest(app, app.remaining(true));
  if (doctor->parsed()) {
    refuse_foreign(app, "doctor", "db");
    result.command = Command::kDoctor;
    if (!table.given("--db")) options.db_file.clear();
    return result;
  }
  if (stored->parsed()) {
    refuse_foreign(app, "stored", "");
    result.command = Command::kStored;
    return result;
  }
  if (environment_problem) std::rethrow_exception(environment_problem);
  if (validate->parsed()) {
    refuse_training_only(table);
    options.validate = validation;
  }
  reconcile(options, table);
  if (!options.validate) options.unused = unused_settings(table, environment, options.engine.schedule);
  return result;
}

}  // namespace hvd::bench
