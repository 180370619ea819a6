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
#include "bench/coll/result.h"
#include "bench/world/setup.h"
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
  mpirun -n 2 hvd_bench coll --from-replay gpt2

Exit codes: 0 good, 1 a wrong result, 2 usage or I/O, 5 a rank lost or a deadline passed, 6 ranks disagree,
  7 interrupted (what was measured is printed, written and stored, marked), 8 out of memory or a library failed.)";

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

bool sizes_given(const OptionTable& table) {
  return table.given("-b") || table.given("-e") || table.given("-i") || table.given("-f");
}

/// Sets the options of --find-crossovers. Sizes go up to 4 MiB, because latency no longer matters above 4 MiB.
void settle_crossovers(coll::CollOptions& o, OptionTable& table) {
  if (!o.compare.empty() || table.given("--algorithm") || !o.model.empty() || o.ragged || o.gpus) {
    throw Error(Errc::kInvalidArgument,
                "--find-crossovers chooses the cells itself and runs on CPUs; leave out --compare, --algorithm, "
                "--from-model, --from-replay, --ragged and --device");
  }
  o.collectives = {MeasuredCollective::kAllReduce, MeasuredCollective::kReduceScatter, MeasuredCollective::kAllGather};
  o.types = {DataType::kF32};
  o.ops = {ReduceOp::kSum};
  o.place = coll::Place::kInPlace;
  o.bound = false;
  o.variants = coll::crossover_variants(o.variants[0]);
  if (!sizes_given(table)) o.sizes = coll::sizes_of({1024, std::size_t{4} << 20, 0, 2});
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
  for (const MeasuredCollective collective : o.collectives) {
    if (collective != MeasuredCollective::kBroadcast && collective != MeasuredCollective::kBarrier) continue;
    throw Error(Errc::kInvalidArgument, "-G: the host takes part in " + std::string(coll::name(collective)) +
                                            ", which no CUDA graph can hold; name others with --collective");
  }
  o.warm = true;
}

/// Sets the sizes: of a network's buckets, or of the range.
void settle_sizes(coll::CollOptions& o, const OptionTable& table) {
  const bool replayed = !o.replay_file.empty();
  if (!replayed && o.model.empty()) {
    if (o.bucket_mebibytes) {
      throw Error(Errc::kInvalidArgument,
                  "--bucket-mb is of the buckets of --from-model or --from-replay; give both or neither");
    }
    o.sizes = coll::sizes_of(o.range);
    return;
  }
  const std::string source = replayed ? "--from-replay" : "--from-model";
  if (replayed && !o.model.empty()) {
    throw Error(Errc::kInvalidArgument, "--from-model and --from-replay each give the sizes; leave one out");
  }
  if (sizes_given(table)) {
    throw Error(Errc::kInvalidArgument, source + " gives the sizes, and so do -b, -e, -f and -i; leave one out");
  }
  if (o.types.size() > 1) {
    throw Error(Errc::kInvalidArgument, source + ": buckets are of one type; name one with -d");
  }
  core::BucketOptions options;
  if (o.bucket_mebibytes) options.bucket_bytes = static_cast<std::size_t>(*o.bucket_mebibytes * 0x1p20);
  options.first_bucket_bytes = std::min(options.first_bucket_bytes, options.bucket_bytes);
  std::vector<core::GradientInfo> gradients;
  if (replayed) {
    const RecordedStep recorded = read_replay(o.replay_file);
    o.replay_file = recorded.file;
    o.model = recorded.profile.model;
    gradients = coll::gradients_of(recorded.profile);
  } else {
    gradients = coll::gradients_of(o.model);
  }
  coll::BucketSizes buckets = coll::bucket_sizes(gradients, o.types.front(), options);
  o.sizes = std::move(buckets.sizes);
  o.repeats = std::move(buckets.repeats);
}

void settle_coll(coll::CollOptions& o, OptionTable& table) {
  settle_sizes(o, table);
  if (o.find_crossovers) settle_crossovers(o, table);
  settle_graphs(o);
  if (table.given("--no-db")) o.db_file.clear();
  if (!o.compare.empty()) o.variants = parse_compare(o.compare, o.variants[0]);
  if (o.gpus && (table.given("--algorithm") || (!o.compare.empty() && !o.compare.starts_with("memory=")))) {
    throw Error(
        Errc::kInvalidArgument,
        "--device cuda: NCCL chooses its algorithm; leave --algorithm out, and compare memory=registered,plain");
  }
  const auto place = [](const std::string& file) { return std::filesystem::absolute(file).lexically_normal(); };
  for (const std::string& file : {o.json_file, o.csv_file}) {
    if (!file.empty() && !o.replay_file.empty() && place(file) == place(o.replay_file)) {
      throw Error(Errc::kInvalidArgument, file + ": is the file of --from-replay; give -J or --csv another name");
    }
  }
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

CollCommand parse_coll(const std::vector<std::string>& argv) {
  CollCommand command;
  OptionTable table = coll::coll_table(command.options);
  CLI::App app(kCollDescription, "hvd_bench coll");
  app.footer(kCollFooter);
  const std::vector<std::string> rest = parse_own_options(app, table, argv, command.help);
  if (!command.help.empty()) return command;
  if (!rest.empty()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("'{}': 'hvd_bench coll' takes no such option{}; see hvd_bench coll --help", rest.front(),
                            instead_of(rest.front())));
  }
  settle_coll(command.options, table);
  return command;
}

}  // namespace hvd::bench
