#include "bench/cli/coll/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "bench/cli/command_line.h"
#include "bench/cli/registrar.h"
#include "bench/cli/values.h"
#include "bench/coll/result.h"
#include "engine/base/error.h"
#include "engine/core/bucket_plan.h"

namespace hvd::bench {
namespace {

constexpr const char* kCollDescription =
    "hvd_bench coll times the collective operations of the embedded engine and checks their results. Letters and the\n"
    "first columns are those of NVIDIA's nccl-tests.";
constexpr const char* kCollFooter = R"(Examples:
  mpirun -n 4 hvd_bench coll -b 1K -e 64M -f 4
  hvd_bench coll --ranks 2 --collective all --warm -J coll.json --db coll.db
  mpirun -n 8 hvd_bench coll --device cuda -b 8 -e 4G -f 2
  mpirun -n 4 hvd_bench coll --compare algorithm=ring,shm -b 1M -e 16M
  mpirun -n 2 hvd_bench coll --from-model vgg16

Exit codes: 0 good, 1 a wrong result, 2 usage or I/O, 5 a rank lost or a deadline passed, 6 ranks disagree,
  7 interrupted (what was measured is printed, written and stored, marked), 8 out of memory or a library failed.)";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::vector<coll::MeasuredCollective> parse_collectives(const std::string& text) {
  using coll::kMeasuredCollectives;
  if (text == "all") return {kMeasuredCollectives.begin(), kMeasuredCollectives.end()};
  std::vector<std::string> names;
  names.reserve(kMeasuredCollectives.size() + 1);
  for (const coll::MeasuredCollective collective : kMeasuredCollectives) names.emplace_back(coll::name(collective));
  names.emplace_back("all");
  std::vector<coll::MeasuredCollective> collectives;
  for (const std::string& part : split(text, ',')) {
    const std::size_t word = parse_word("--collective", part, names);
    if (word == kMeasuredCollectives.size()) throw Error(Errc::kInvalidArgument, "--collective: 'all' stands alone");
    collectives.push_back(kMeasuredCollectives.at(word));
  }
  return collectives;
}

/// Returns the value that `text` names. `text` is either a spelling from `names` or the value's own name ("fp32",
/// "average").
/// Errors: invalid_argument that lists the spellings.
template <class Names>
auto parse_name(const Names& names, std::string_view where, std::string_view text) {
  std::vector<std::string> known;
  for (const auto& [value, spelling] : names) {
    if (text == hvd::name(value)) return value;
    known.emplace_back(spelling);
  }
  return names.at(parse_word(where, text, known)).first;
}

std::vector<DataType> parse_types(const std::string& text) {
  std::vector<DataType> types;
  if (text == "all") {
    for (std::uint8_t type = 0; type < kDataTypes; ++type) types.push_back(static_cast<DataType>(type));
    return types;
  }
  for (const std::string& part : split(text, ',')) types.push_back(parse_name(coll::kTypeNames, "-d", part));
  return types;
}

std::vector<ReduceOp> parse_ops(const std::string& text) {
  std::vector<ReduceOp> ops;
  if (text == "all") {
    for (std::uint8_t op = 0; op < kReduceOps; ++op) ops.push_back(static_cast<ReduceOp>(op));
    return ops;
  }
  for (const std::string& part : split(text, ',')) ops.push_back(parse_name(coll::kOpNames, "-o", part));
  return ops;
}

bool parse_memory(const std::string& where, const std::string& text) {
  return parse_word(where, text, {"registered", "plain"}) == 0;
}

/// Parses KEY=VALUE,VALUE... Returns one variant per value. Each variant differs from `base` only in KEY.
std::vector<coll::Variant> parse_compare(const std::string& text, const coll::Variant& base) {
  const std::size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  const std::size_t word = parse_word("--compare", key, {"algorithm", "memory", "segment"});
  const std::vector<std::string> values = split(equals == std::string::npos ? "" : text.substr(equals + 1), ',');
  if (values.size() < 2) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("--compare: '{}' names one value; give several: --compare algorithm=ring,shm", text));
  }
  std::vector<coll::Variant> variants;
  for (const std::string& value : values) {
    coll::Variant variant = base;
    variant.name = fmt::format("{}={}", key, value);
    if (word == 0) variant.comm.algorithm = comm::parse_algorithm(value);
    if (word == 1) variant.registered = parse_memory("--compare memory", value);
    if (word == 2) variant.comm.segment_bytes = std::max<std::size_t>(1, parse_bytes("--compare segment", value));
    const bool twice = std::any_of(variants.begin(), variants.end(),
                                   [&](const coll::Variant& other) { return other.name == variant.name; });
    if (twice) throw Error(Errc::kInvalidArgument, fmt::format("--compare: '{}' is given twice", value));
    variants.push_back(std::move(variant));
  }
  return variants;
}

/// Returns what replaces `option` if nccl-tests has the option and this program does not; otherwise "".
std::string instead_of(std::string_view option) {
  struct Known {
    std::string_view letter, name, instead;
  };
  constexpr std::array kKnown{
      Known{"-t", "--nthreads", "ranks are processes (mpirun -n N) or threads of one process (--ranks N)"},
      Known{"-g", "--ngpus", "each rank has one GPU: mpirun -n N, or --ranks N"},
      Known{"-m", "--agg_iters", "short operations are put together until a sample is long enough"},
      Known{"-N", "--run_cycles", "a cell is measured until --target-interval or --max-time"},
      Known{"-p", "--parallel_init", "ranks always connect side by side"},
      Known{"-r", "--root", "the root is rank 0"},
      Known{"-a", "--average", "time is the slowest rank's; skew and last tell how the ranks differ"},
      Known{"-y", "--stream_null", "operations have a stream of their own"},
      Known{"-T", "--timeout", "--deadline-seconds bounds every wait"},
      Known{"-C", "--report_cputime", "time is of the whole operation: by events on a GPU, else by the host's clock"},
      Known{"-S", "--report_timestamps", "-J has start_time and end_time"},
      Known{"-R", "--local_register", "--memory registered or plain"},
      Known{"-x", "--cta_policy", "NCCL's own variables, such as NCCL_CTA_POLICY"},
      Known{"-D", "--device_implementation", "operations are NCCL's"},
      Known{"-V", "--device_cta_count", "operations are NCCL's"},
      Known{"-M", "", "-J has buffer_bytes"},  // -M is --memory in nccl-tests; our --memory is another option
      Known{"-I", "--per_iter_timing", "-J and --csv always have the spread of the samples"},
      Known{"-K", "--per_iter_skip", "-w discards the first samples"},
      Known{"-u", "--unalign", "buffers begin at multiples of 64 bytes"}};
  const std::string_view word = option.substr(0, option.find('='));
  for (const Known& known : kKnown) {
    const bool is_letter = option.starts_with(known.letter) && !option.starts_with("--");
    if (is_letter || (!known.name.empty() && word == known.name))
      return " of nccl-tests: " + std::string(known.instead);
  }
  return {};
}

/// Options that are checked together after all of them have been parsed.
struct CollGiven {
  coll::SizeRange range{1024, std::size_t{64} << 20, 0, 4};
  std::optional<double> bucket_mebibytes;
  bool sizes = false, algorithm = false, no_db = false;
  std::string compare;
};

void register_sizes(Registrar add, coll::CollOptions& o, CollGiven& given) {
  add.group("What is measured");
  const auto bytes = [&](const char* name, const char* help, std::size_t& target) {
    add.value(name, "BYTES", help, [name, &target, &given](const std::string& text) {
      target = parse_bytes(name, text);
      given.sizes = true;
    });
  };
  bytes("-b,--minbytes", "Smallest size (default: 1K; K, M and G are binary)", given.range.first);
  bytes("-e,--maxbytes", "Largest size (default: 64M)", given.range.last);
  bytes("-i,--stepbytes", "Sizes grow by so many bytes", given.range.step);
  add.value("-f,--stepfactor", "N", "Sizes grow by this factor (default: 4)", [&given](const std::string& text) {
    given.range.factor = static_cast<std::size_t>(parse_integer("-f", text, 2, 1 << 30));
    given.range.step = 0;
    given.sizes = true;
  });
  add.value("--from-model", "NAME", "Sizes of this network's gradient buckets (inception3, resnet50, resnet101, vgg16)",
            [&o](const std::string& text) { o.model = text; });
  add.number("--bucket-mb", "MIB", "With --from-model: size of the buckets (default: 25)", 0, 1 << 20,
             [&given](double x) { given.bucket_mebibytes = x; });
  add.flag("--ragged", "Shares of the ranks differ: 1, 2, 3, ... units (reduce_scatter, all_gather, all_to_all)",
           [&o] { o.ragged = true; });
  add.value("--collective", "NAMES",
            "all_reduce (default), reduce_scatter, all_gather, all_to_all, broadcast, barrier, several with commas, or "
            "all",
            [&o](const std::string& text) { o.collectives = parse_collectives(text); });
  add.value("-d,--datatype", "TYPES", "float (default), half, bfloat16, double, int8, ..., several with commas, or all",
            [&o](const std::string& text) { o.types = parse_types(text); });
  add.value("-o,--op", "OPS", "sum (default), prod, min, max, avg, several with commas, or all",
            [&o](const std::string& text) { o.ops = parse_ops(text); });
  add.value("--place", "FORM", "both (default), out (of place) or in (place)", [&o](const std::string& text) {
    o.place = static_cast<coll::Place>(parse_word("--place", text, {"both", "out", "in"}));
  });
  add.value("--memory", "KIND", "registered (default: shared by the ranks of a host) or plain",
            [&o](const std::string& text) { o.variants[0].registered = parse_memory("--memory", text); });
  add.flag("--warm", "Let buffers stay in caches (default: they rotate through twice the last-level cache)",
           [&o] { o.warm = true; });
}

void register_precision(Registrar add, coll::CollOptions& o) {
  add.group("How it is measured");
  add.integer("-n,--iters",
              "Minimum number of samples per cell (default: 20; never fewer than 10; --max-time may end earlier)", 1,
              100'000, o.least_samples);
  add.integer("-w,--warmup_iters", "Samples per cell that are discarded first (default: 5)", 0, 1 << 20, o.warmup);
  add.number("--target-interval", "X", "Relative half width of the median's interval (default: 0.02)", 1e-4, 1,
             [&o](double x) { o.target_interval = x; });
  add.number("--max-time", "S", "Cap on each cell's own time in seconds (default: 5)", 1e-3, 1e7,
             [&o](double x) { o.max_seconds = x; });
  add.value(
      "-z,--blocking", "0..3",
      "0 (default): start all, wait for the last; 1: a barrier after each; 2: wait for each; 3: one operation per "
      "sample",
      [&o](const std::string& text) { o.pace = static_cast<coll::Pace>(parse_integer("-z", text, 0, 3)); });
  add.integer(
      "-G,--cudagraph",
      "On GPUs: number of launches of a CUDA graph with the operations of a sample (default: 0, no graph; implies "
      "--warm)",
      0, 1 << 20, o.graph_launches);
  add.integer("-c,--check", "Passes of the check of every element of a result on every rank; 0: no check (default: 1)",
              0, 1 << 20, o.checks);
  add.flag("--no-bound", "Do not measure the bare copy or reduction beside each cell", [&o] { o.bound = false; });
  add.number("--link-gbit", "X", "For ranks on several hosts: rate of one rank's link in Gbit/s, used as the bound",
             1e-3, 1e6, [&o](double x) { o.link_gbit = x; });
  add.integer("--seed", "Seed for the order of cells (default: 1)", 0, std::numeric_limits<std::int64_t>::max(),
              o.seed);
}

void register_world(Registrar add, coll::CollOptions& o, CollGiven& given) {
  add.group("On which ranks");
  add.value("--device", "DEVICE", "cpu (default: memory of the host) or cuda (one GPU a rank, by NCCL)",
            [&o](const std::string& text) {
              o.gpus = parse_word("--device", text, {"cpu", "cuda"}) == 1;
            });
  add.integer("--ranks", "Ranks as threads of this one process", 1, 1024, o.ranks);
  add.value("--comm", "BACKEND", "auto (default), mpi or loopback (threads of one process)",
            [&o](const std::string& text) {
              constexpr std::array kBackends{CommBackend::kAuto, CommBackend::kMpi, CommBackend::kLoopback};
              o.comm = kBackends[parse_word("--comm", text, {"auto", "mpi", "loopback"})];
            });
  add.value("--algorithm", "NAME", "auto (default), shm, ring, hierarchical, mpi, doubling or rabenseifner",
            [&o, &given](const std::string& text) {
              o.variants[0].comm.algorithm = comm::parse_algorithm(text);
              given.algorithm = true;
            });
  add.value("--compare", "KEY=A,B",
            "Measure sides in turn: algorithm=ring,shm, memory=registered,plain or segment=64K,1M",
            [&given](const std::string& text) { given.compare = text; });
  add.flag(
      "--find-crossovers",
      "Between hosts: measure doubling, rabenseifner and ring from 1K to 4M in turn, and say up to which size each "
      "is the fastest",
      [&o] { o.find_crossovers = true; });
  add.folder(
      "--tuning-folder",
      "Folder in which --find-crossovers stores its results, and from which other runs on several hosts load them",
      o.tuning_folder);
  add.number("--deadline-seconds", "S", "Deadline of every wait for another rank (default: 60)", 0.1, 86400,
             [&o](double x) { o.deadline.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * x)); });
  add.number(
      "--startup-deadline-seconds", "S", "Deadline of waits while the ranks connect (default: 300)", 0.1, 86400,
      [&o](double x) { o.startup_deadline.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * x)); });
}

void register_files(Registrar add, coll::CollOptions& o, CollGiven& given) {
  add.group("Where results go");
  add.file("-J,--json,--output_file", "JSON with the keys of nccl-tests", o.json_file);
  add.file("--csv", "One line per cell", o.csv_file);
  add.file("--db", "SQLite store, added to if it exists: cells, samples and provenance (default: none)", o.db_file);
  add.flag("--no-db", "Store nothing, whatever --db says", [&given] { given.no_db = true; });
}

/// Sets the options of --find-crossovers. Sizes go up to 4 MiB, because latency no longer matters above 4 MiB.
void settle_crossovers(coll::CollOptions& o, const CollGiven& given) {
  if (!given.compare.empty() || given.algorithm || !o.model.empty() || o.ragged || o.gpus) {
    throw Error(Errc::kInvalidArgument,
                "--find-crossovers chooses the cells itself and runs on CPUs; leave out --compare, --algorithm, "
                "--from-model, --ragged and --device");
  }
  using coll::MeasuredCollective;
  o.collectives = {MeasuredCollective::kAllReduce, MeasuredCollective::kReduceScatter, MeasuredCollective::kAllGather};
  o.types = {DataType::kF32};
  o.ops = {ReduceOp::kSum};
  o.place = coll::Place::kInPlace;
  o.bound = false;
  o.variants = coll::crossover_variants(o.variants[0]);
  if (!given.sizes) o.sizes = coll::sizes_of({1024, std::size_t{4} << 20, 0, 2});
}

/// Checks the options of -G. -G implies --warm, because the operations of a graph always use the same buffers.
void settle_graphs(coll::CollOptions& o) {
  if (o.graph_launches == 0) return;
  if (!o.gpus) {
    throw Error(Errc::kInvalidArgument,
                "-G: a CUDA graph holds operations of a GPU; give --device cuda, or leave -G out");
  }
  if (o.pace != coll::Pace::kStream) {
    throw Error(Errc::kInvalidArgument,
                "-G: with -z 1, 2 and 3 the host waits for operations, which no CUDA graph can hold; leave one out");
  }
  for (const coll::MeasuredCollective collective : o.collectives) {
    if (collective != coll::MeasuredCollective::kBroadcast && collective != coll::MeasuredCollective::kBarrier)
      continue;
    throw Error(Errc::kInvalidArgument, "-G: the host takes part in " + std::string(coll::name(collective)) +
                                            ", which no CUDA graph can hold; name others with --collective");
  }
  o.warm = true;
}

void settle_coll(coll::CollOptions& o, const CollGiven& given) {
  if (!o.model.empty() && given.sizes) {
    throw Error(Errc::kInvalidArgument, "--from-model gives the sizes, and so do -b, -e, -f and -i; leave one out");
  }
  if (o.model.empty() && given.bucket_mebibytes) {
    throw Error(Errc::kInvalidArgument, "--bucket-mb is of the buckets of --from-model; give both or neither");
  }
  if (!o.model.empty() && o.types.size() > 1) {
    throw Error(Errc::kInvalidArgument, "--from-model: buckets are of one type; name one with -d");
  }
  if (o.model.empty()) {
    o.sizes = coll::sizes_of(given.range);
  } else {
    core::BucketOptions options;
    if (given.bucket_mebibytes) options.bucket_bytes = static_cast<std::size_t>(*given.bucket_mebibytes * 0x1p20);
    options.first_bucket_bytes = std::min(options.first_bucket_bytes, options.bucket_bytes);
    coll::BucketSizes buckets = coll::bucket_sizes(o.model, o.types.front(), options);
    o.sizes = std::move(buckets.sizes);
    o.repeats = std::move(buckets.repeats);
  }
  if (o.find_crossovers) settle_crossovers(o, given);
  settle_graphs(o);
  if (given.no_db) o.db_file.clear();
  if (!given.compare.empty()) o.variants = parse_compare(given.compare, o.variants[0]);
  if (o.gpus && (given.algorithm || (!given.compare.empty() && !given.compare.starts_with("memory=")))) {
    throw Error(
        Errc::kInvalidArgument,
        "--device cuda: NCCL chooses its algorithm; leave --algorithm out, and compare memory=registered,plain");
  }
  const auto place = [](const std::string& file) { return std::filesystem::absolute(file).lexically_normal(); };
  if (!o.json_file.empty() && !o.csv_file.empty() && place(o.json_file) == place(o.csv_file)) {
    throw Error(Errc::kInvalidArgument, fmt::format("-J and --csv name one file: {}; give two", o.json_file));
  }
  if (o.ranks > 0 && o.comm == CommBackend::kMpi) {
    throw Error(
        Errc::kInvalidArgument,
        "--ranks makes ranks of this one process, --comm mpi takes them from mpirun or srun; leave one of them out");
  }
}

}  // namespace

std::size_t parse_bytes(std::string_view where, std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  std::string_view digits = text;
  double unit = 1;
  if (!text.empty()) {
    const char last = static_cast<char>(text.back() & ~0x20);  // upper case
    if (const std::size_t power = kUnits.find(last); power != std::string_view::npos) {
      for (std::size_t i = 0; i <= power; ++i) unit *= 1024;
      digits.remove_suffix(1);
    }
  }
  try {
    return static_cast<std::size_t>(parse_number(where, digits, 0, 0x1p50 / unit) * unit);
  } catch (const Error&) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("{}: '{}' is not a number of bytes such as 4096, 4K, 1.5M or 2G", where, text));
  }
}

CollCommand parse_coll(const std::vector<std::string>& argv) {
  CollCommand command;
  CollGiven given;
  CLI::App app(kCollDescription, "hvd_bench coll");
  app.set_help_flag("-h,--help", "Print this and exit")->group("Help");
  app.footer(kCollFooter);
  app.get_formatter()->column_width(32);
  app.allow_extras();
  const Registrar add(app);
  register_sizes(add, command.options, given);
  register_precision(add, command.options);
  register_world(add, command.options, given);
  register_files(add, command.options, given);
  std::vector<std::string> arguments(argv.rbegin(), argv.rend() - 2);  // CLI11 expects them in reverse order
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    command.help = app.help();
    return command;
  } catch (const CLI::ParseError& error) {
    throw Error(Errc::kInvalidArgument, std::string(error.what()) + "; see hvd_bench coll --help");
  }
  if (const std::vector<std::string> rest = app.remaining(); !rest.empty()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("'{}': 'hvd_bench coll' takes no such option{}; see hvd_bench coll --help", rest.front(),
                            instead_of(rest.front())));
  }
  settle_coll(command.options, given);
  return command;
}

}  // namespace hvd::bench
