#include "bench/coll/options.h"

#include <fmt/format.h>

#include <limits>

#include "engine/base/error.h"
#include "engine/base/vector_level.h"

namespace hvd::bench::coll {
namespace {

std::vector<MeasuredCollective> parse_collectives(const std::string& text) {
  if (text == "all") return {kMeasuredCollectives.begin(), kMeasuredCollectives.end()};
  std::vector<std::string> names(kCollectiveNames.begin(), kCollectiveNames.end());
  names.emplace_back("all");
  std::vector<MeasuredCollective> collectives;
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

/// Parses names with commas, or "all".
template <class Names>
auto parse_names(const Names& names, std::string_view where, const std::string& text) {
  std::vector<typename Names::value_type::first_type> values;
  if (text == "all") {
    for (std::size_t value = 0; value < names.size(); ++value) {
      values.push_back(static_cast<typename Names::value_type::first_type>(value));
    }
    return values;
  }
  for (const std::string& part : split(text, ',')) values.push_back(parse_name(names, where, part));
  return values;
}

template <class Items, class Name>
std::string list_of(const Items& items, Name&& name_of) {
  std::string text;
  for (const auto& item : items) text.append(text.empty() ? "" : ",").append(name_of(item));
  return text;
}

void add_sizes(OptionTable& add, CollOptions& o) {
  add.group("What is measured");
  const auto bytes = [&](const char* names, const char* help, std::size_t& target) {
    add.value(names, "BYTES", help, {}, [=, &target](const std::string& text) { target = parse_bytes(names, text); });
  };
  bytes("-b,--minbytes", "Smallest size (default: 1K; K, M and G are binary)", o.range.first);
  bytes("-e,--maxbytes", "Largest size (default: 64M)", o.range.last);
  bytes("-i,--stepbytes", "Sizes grow by so many bytes", o.range.step);
  add.value("-f,--stepfactor", "N", "Sizes grow by this factor (default: 4)", {}, [&o](const std::string& text) {
    o.range.factor = static_cast<std::size_t>(parse_integer("-f", text, 2, 1 << 30));
    o.range.step = 0;
  });
  add.value("--from-model", "NAME", "Sizes of this network's gradient buckets (inception3, resnet50, resnet101, vgg16)",
            {}, [&o](const std::string& text) { o.model = text; });
  add.path("--from-replay", "FILE", "Sizes of a recorded step's gradient buckets: a file, or gpt2 or llama, which ship",
           {}, o.replay_file);
  add.number("--bucket-mb", "MIB", "With --from-model or --from-replay: size of the buckets (default: 25)", {}, 0,
             1 << 20, o.bucket_mebibytes);
  add.flag("--ragged", "Shares of the ranks differ: 1, 2, 3, ... units (reduce_scatter, all_gather, all_to_all)",
           {kEqual}, o.ragged, true);
  add.value("--collective", "NAMES",
            "all_reduce (default), reduce_scatter, all_gather, all_to_all, broadcast, barrier, several with commas, or "
            "all",
            {kEqual}, [&o](const std::string& text) { o.collectives = parse_collectives(text); });
  add.value("-d,--datatype", "TYPES", "float (default), half, bfloat16, double, int8, ..., several with commas, or all",
            {.in = kEqual, .text = [&o] { return list_of(o.types, [](DataType type) { return nccl_name(type); }); }},
            [&o](const std::string& text) { o.types = parse_names(kTypeNames, "-d", text); });
  add.value("-o,--op", "OPS", "sum (default), prod, min, max, avg, several with commas, or all",
            {.in = kEqual, .text = [&o] { return list_of(o.ops, [](ReduceOp op) { return nccl_name(op); }); }},
            [&o](const std::string& text) { o.ops = parse_names(kOpNames, "-o", text); });
  add.choice("--place", "FORM", "both (default), out (of place) or in (place)",
             {.in = kEqual, .text = [&o] { return std::to_string(static_cast<int>(o.place)); }}, o.place,
             {{"both", Place::kBoth}, {"out", Place::kOutOfPlace}, {"in", Place::kInPlace}});
  add.choice("--memory", "KIND", "registered (default: shared by the ranks of a host) or plain", {},
             o.variants[0].registered, {{"registered", true}, {"plain", false}});
  add.flag("--warm", "Let buffers stay in caches (default: they rotate through twice the last-level cache)", {kEqual},
           o.warm, true);
}

void add_precision(OptionTable& add, CollOptions& o) {
  add.group("How it is measured");
  add.integer("-n,--iters",
              "Minimum number of samples per cell (default: 20; never fewer than 10; --max-time may end earlier)",
              {.fact = "option.iters"}, 1, 100'000, o.least_samples);
  add.integer("-w,--warmup_iters", "Samples per cell that are discarded first (default: 5)",
              {.fact = "option.warmup_iters"}, 0, 1 << 20, o.warmup);
  add.number("--target-interval", "X", "Relative half width of the median's interval (default: 0.02)", {}, 1e-4, 1,
             o.target_interval);
  add.number("--max-time", "S", "Cap on each cell's own time in seconds (default: 5)", {.fact = "option.max_time_s"},
             1e-3, 1e7, o.max_seconds);
  add.value(
      "-z,--blocking", "0..3",
      "0 (default): start all, wait for the last; 1: a barrier after each; 2: wait for each; 3: one operation per "
      "sample",
      {.in = kEqual, .text = [&o] { return std::to_string(static_cast<int>(o.pace)); }},
      [&o](const std::string& text) { o.pace = static_cast<Pace>(parse_integer("-z", text, 0, 3)); });
  add.integer(
      "-G,--cudagraph",
      "On GPUs: number of launches of a CUDA graph with the operations of a sample (default: 0, no graph; implies "
      "--warm)",
      {kEqual}, 0, 1 << 20, o.graph_launches);
  add.integer("-c,--check", "Passes of the check of every element of a result on every rank; 0: no check (default: 1)",
              {.in = kEqual, .fact = "option.check"}, 0, 1 << 20, o.checks);
  add.flag("--no-bound", "Do not measure the bare copy or reduction beside each cell", {kEqual}, o.bound, false);
  add.number("--link-gbit", "X", "For ranks on several hosts: rate of one rank's link in Gbit/s, used as the bound",
             {.fact = "option.link_gbit"}, 1e-3, 1e6, o.link_gbit);
  add.integer("--seed", "Seed for the order of cells (default: 1)", {.fact = "option.seed"}, 0,
              std::numeric_limits<std::int64_t>::max(), o.seed);
}

void add_world(OptionTable& add, CollOptions& o) {
  add.group("On which ranks");
  add.choice("--device", "DEVICE", "cpu (default: memory of the host) or cuda (one GPU a rank, by NCCL)", {kEqual},
             o.gpus, {{"cpu", false}, {"cuda", true}});
  add.integer("--ranks", "Ranks as threads of this one process", {}, 1, 1024, o.ranks);
  add.choice("--comm", "BACKEND", "auto (default), mpi or loopback (threads of one process)", {}, o.comm,
             {{"auto", CommBackend::kAuto}, {"mpi", CommBackend::kMpi}, {"loopback", CommBackend::kLoopback}});
  add.value("--algorithm", "NAME", "auto (default), shm, ring, hierarchical, mpi, doubling or rabenseifner", {},
            [&o](const std::string& text) { o.variants[0].comm.algorithm = comm::parse_algorithm(text); });
  add.value("--compare", "KEY=A,B",
            "Measure sides in turn: algorithm=ring,shm, memory=registered,plain or segment=64K,1M", {},
            [&o](const std::string& text) { o.compare = text; });
  add.flag("--find-crossovers",
           "Between hosts: measure doubling, rabenseifner and ring from 1K to 4M in turn, and say up to which size "
           "each is the fastest",
           {kEqual}, o.find_crossovers, true);
  add.path("--tuning-folder", "FOLDER",
           "Folder in which --find-crossovers stores its results, and from which other runs on several hosts load them",
           {kEqual}, o.tuning_folder);
  add.number("--deadline-seconds", "S", "Deadline of every wait for another rank (default: 60)", {}, 0.1, 86400,
             o.deadline.timeout, 1000);
  add.number("--startup-deadline-seconds", "S", "Deadline of waits while the ranks connect (default: 300)", {}, 0.1,
             86400, o.startup_deadline.timeout, 1000);
}

void add_files(OptionTable& add, CollOptions& o) {
  add.group("Where results go");
  add.path("-J,--json,--output_file", "FILE", "JSON with the keys of nccl-tests", {}, o.json_file);
  add.path("--csv", "FILE", "One line per cell", {}, o.csv_file);
  add.path("--db", "FILE", "SQLite store, added to if it exists: cells, samples and provenance (default: none)", {},
           o.db_file);
  add.labels({.pattern = ".*"}, o.labels);
  add.value("--no-db", "", "Store nothing, whatever --db says", {}, [](const std::string&) {});
}

}  // namespace

OptionTable coll_table(CollOptions& options) {
  OptionTable table;
  add_sizes(table, options);
  add_precision(table, options);
  add_world(table, options);
  add_files(table, options);
  return table;
}

RunSettings settings_of(const CollOptions& options) {
  // The first difference is named, so what decides about other settings comes first.
  RunSettings settings{
      {"the command", "coll"},
      {"--collective", list_of(options.collectives, [](MeasuredCollective item) { return name(item); })},
      {"the sizes (bytes)", list_of(options.sizes, [](std::size_t size) { return std::to_string(size); })},
      {"-G", std::to_string(options.graph_launches)},
      {std::string(kMaxCpuIsa), vector_level_limit().empty() ? "not set" : vector_level_limit()}};
  CollOptions rows = options;
  coll_table(rows).compare(settings, options.gpus);
  settings.emplace_back("the communicators", list_of(options.variants, [](const Variant& variant) {
                          return fmt::format("{}:{}:{}:{}", variant.name, comm::name(variant.comm.algorithm),
                                             variant.comm.segment_bytes, variant.registered ? "registered" : "plain");
                        }));
  return settings;
}

}  // namespace hvd::bench::coll
