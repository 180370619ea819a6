#include "bench/coll/record.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/store/result_store.h"
#include "bench/store/run_writer.h"
#include "bench/store/sqlite_handle.h"
#include "bench/tune/crossovers.h"
#include "engine/base/hash.h"

namespace hvd::bench::coll {
namespace {

std::int64_t integer(std::size_t value) { return static_cast<std::int64_t>(value); }

/// Returns text such as "n1 x 4, n2 x 4", in the order of ranks: one entry for successive ranks on the same host.
std::string hosts_text(const std::vector<std::string>& hosts) {
  std::string text;
  for (std::size_t first = 0, end = 0; first < hosts.size(); first = end) {
    while (end < hosts.size() && hosts[end] == hosts[first]) ++end;
    text.append(text.empty() ? "" : ", ").append(hosts[first]).append(" x ").append(std::to_string(end - first));
  }
  return text;
}

class RecordWriter {
 public:
  RecordWriter(Database& database, const Record& record)
      : database_(database), record_(record), result_(record.result), options_(record.options) {}

  void write_launch() {
    // ON DELETE CASCADE removes this launch's rows from the other tables.
    Statement(database_, "DELETE FROM coll_session WHERE uuid = ?1").bind(record_.session_uuid).run();
    const World& world = result_.world;
    Statement insert(database_,
                     "INSERT INTO coll_session (uuid, status, status_reason, started_utc, finished_utc, device, comm,"
                     " ranks, nodes, oversubscribed, blocking, warm, model, target_interval, buffer_bytes, cache_bytes,"
                     " clock_seconds, fingerprint) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    insert.bind(record_.session_uuid).bind(result_.interrupted.empty() ? "complete" : "incomplete");
    insert.bind(result_.interrupted).bind(result_.started_utc).bind(result_.finished_utc);
    insert.bind(options_.gpus ? "cuda" : "cpu").bind(world.comm);
    insert.bind(std::int64_t{world.ranks}).bind(std::int64_t{world.nodes}).bind(std::int64_t{world.oversubscribed});
    insert.bind(static_cast<std::int64_t>(options_.pace)).bind(std::int64_t{options_.warm}).bind(options_.model);
    insert.bind(options_.target_interval).bind(integer(result_.arena_bytes)).bind(integer(result_.cache_bytes));
    insert.bind(world.clock_uncertainty).bind(fingerprint(record_)).run();
  }

  void write_facts() {
    Statement insert(database_,
                     "INSERT INTO coll_provenance (session_uuid, key, value, in_fingerprint) VALUES (?,?,?,?)");
    for (const auto& [key, fact] : record_.provenance) {
      insert.bind(record_.session_uuid).bind(key).bind(fact.value).bind(std::int64_t{fact.in_fingerprint}).run();
    }
  }

  void write_cells() {
    Statement cell(
        database_,
        "INSERT INTO coll_cell (session_uuid, seq, operation, type, reduction, bytes, count, root, in_place, ragged,"
        " side, algorithm, data_plane, registered, samples, operations_per_sample, seconds, seconds_low, seconds_high,"
        " transfer_seconds, skew_seconds, last_rank, last_rank_share, algorithm_bytes_per_second, bus_bytes_per_second,"
        " bound, ratio, ratio_low, ratio_high, wrong, settled, stop_reason)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    Statement sample(database_, "INSERT INTO coll_sample (session_uuid, seq, kind, count, data) VALUES (?,?,?,?,?)");
    for (std::size_t seq = 0; seq < result_.cells.size(); ++seq) {
      if (result_.cells[seq].samples == 0) continue;
      write_cell(cell, seq);
      write_samples(sample, seq);
    }
  }

 private:
  void write_cell(Statement& insert, std::size_t seq) {
    const CellResult& cell = result_.cells[seq];
    const Problem& problem = cell.cell.problem;
    const Variant& variant = options_.variants[static_cast<std::size_t>(cell.cell.variant)];
    insert.bind(record_.session_uuid).bind(integer(seq)).bind(name(problem.collective));
    insert.bind(nccl_name(problem.type)).bind(reduction_name(problem)).bind(integer(cell.bytes));
    insert.bind(integer(problem.count)).bind(std::int64_t{root_of(problem)}).bind(std::int64_t{problem.in_place});
    insert.bind(std::int64_t{problem.ragged}).bind(variant.name).bind(comm::name(variant.comm.algorithm));
    insert.bind(cell.plane).bind(std::int64_t{variant.registered}).bind(integer(cell.samples));
    insert.bind(integer(cell.batch));
    const bool timed = cell.seconds.value > 0;
    bind_estimate(insert, timed ? std::optional(cell.seconds) : std::nullopt);
    insert.bind(cell.transfer).bind(cell.skew).bind(std::int64_t{cell.last_rank}).bind(cell.last_share);
    insert.bind(cell.algorithm_rate).bind(cell.bus_rate).bind(timed ? cell.bound : std::nullopt);
    bind_estimate(insert, cell.ratio);
    cell.wrong ? insert.bind(static_cast<std::int64_t>(*cell.wrong)) : insert.bind_null();
    insert.bind(std::int64_t{cell.settled}).bind(cell.stop_reason).run();
  }

  void write_samples(Statement& insert, std::size_t seq) {
    const std::vector<Sample>& taken = result_.cells[seq].taken;
    const auto write_kind = [&](std::string_view kind, auto&& value_of) {
      std::vector<double> values;
      values.reserve(taken.size());
      for (const Sample& sample : taken) values.push_back(static_cast<double>(value_of(sample)));
      insert.bind(record_.session_uuid).bind(integer(seq)).bind(kind).bind(integer(values.size()));
      insert.bind_blob(std::as_bytes(std::span(values))).run();
    };
    write_kind("seconds", [](const Sample& sample) { return sample.seconds; });
    write_kind("transfer_seconds", [](const Sample& sample) { return sample.transfer; });
    write_kind("skew_seconds", [](const Sample& sample) { return sample.skew; });
    write_kind("last_rank", [](const Sample& sample) { return sample.last_rank; });
    write_kind("round", [](const Sample& sample) { return sample.round; });
  }

  Database& database_;
  const Record& record_;
  const CollResult& result_;
  const CollOptions& options_;
};

}  // namespace

Provenance launch_facts(const CollOptions& options, const CollResult& result) {
  Provenance facts = result.world.facts;
  const auto add = [&facts](const char* key, std::string value, bool in_fingerprint) {
    if (!value.empty()) facts.insert_or_assign(key, ProvenanceFact{std::move(value), in_fingerprint});
  };
  add("comm.library", result.world.library, true);
  add("comm.segment_bytes", std::to_string(options.variants.front().comm.segment_bytes), true);
  // With --find-crossovers this launch found the crossovers but did not use them, so they stay out of the fingerprint.
  if (result.crossovers) add("comm.crossovers", crossover_text(*result.crossovers), !options.find_crossovers);
  add("world.hosts", hosts_text(result.world.hosts), false);
  if (options.graph_launches != 0) add("option.graph_launches", std::to_string(options.graph_launches), true);
  add("option.bound", options.bound ? "yes" : "no", false);
  CollOptions rows = options;
  coll_table(rows).record(facts, options.gpus);
  return facts;
}

std::string fingerprint(const Record& record) {
  const World& world = record.result.world;
  Hasher hasher;
  hasher.text("coll").text(record.options.gpus ? "cuda" : "cpu").text(world.comm);
  hasher.number(static_cast<std::uint64_t>(world.ranks)).number(static_cast<std::uint64_t>(world.nodes));
  hasher.number(world.oversubscribed ? 1 : 0).number(static_cast<std::uint64_t>(record.options.pace));
  hasher.number(record.options.warm ? 1 : 0);
  for (const auto& [key, fact] : record.provenance) {
    if (fact.in_fingerprint) hasher.text(key).text(fact.value);
  }
  return hex64(hasher.value());
}

void save(const Record& record, ResultStore& store) {
  store.save_collectives(record.session_uuid, [&](Database& database) {
    RecordWriter writer(database, record);
    writer.write_launch();
    writer.write_facts();
    writer.write_cells();
  });
}

}  // namespace hvd::bench::coll
