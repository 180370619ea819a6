#include "bench/coll/record.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/coll/columns.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "bench/tune/crossovers.h"
#include "engine/base/hash.h"

namespace hvd::bench::coll {
namespace {

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
    RowWriter(database_, "coll_session")
        .write({{"uuid", record_.session_uuid},
                {"status", result_.interrupted.empty() ? "complete" : "incomplete"},
                {"status_reason", result_.interrupted},
                {"started_utc", result_.started_utc},
                {"finished_utc", result_.finished_utc},
                {"device", options_.gpus ? "cuda" : "cpu"},
                {"comm", world.comm},
                {"ranks", world.ranks},
                {"nodes", world.nodes},
                {"oversubscribed", world.oversubscribed},
                {"blocking", static_cast<int>(options_.pace)},
                {"warm", options_.warm},
                {"model", options_.model},
                {"target_interval", options_.target_interval},
                {"buffer_bytes", result_.arena_bytes},
                {"cache_bytes", result_.cache_bytes},
                {"clock_seconds", world.clock_uncertainty},
                {"fingerprint", fingerprint(record_)}});
  }

  void write_facts() {
    RowWriter writer(database_, "coll_provenance");
    for (const auto& [key, fact] : record_.provenance) {
      writer.write({{"session_uuid", record_.session_uuid},
                    {"key", key},
                    {"value", fact.value},
                    {"in_fingerprint", fact.in_fingerprint}});
    }
  }

  void write_cells() {
    RowWriter cells(database_, "coll_cell"), samples(database_, "coll_sample");
    for (std::size_t seq = 0; seq < result_.cells.size(); ++seq) {
      if (result_.cells[seq].samples == 0) continue;
      write_cell(cells, seq);
      write_samples(samples, seq);
    }
  }

 private:
  void write_cell(RowWriter& writer, std::size_t seq) {
    const CellResult& cell = result_.cells[seq];
    const Variant& variant = options_.variants[static_cast<std::size_t>(cell.cell.variant)];
    std::vector<Column> row{{"session_uuid", record_.session_uuid},
                            {"seq", seq},
                            {"algorithm", comm::name(variant.comm.algorithm)},
                            {"registered", variant.registered}};
    for (const CellColumn& column : cell_columns()) {
      if (!column.stored.empty()) row.push_back({column.stored, column.value(result_, cell)});
    }
    writer.write(row);
  }

  void write_samples(RowWriter& writer, std::size_t seq) {
    const std::vector<Sample>& taken = result_.cells[seq].taken;
    const auto write_kind = [&](std::string_view kind, auto&& value_of) {
      std::vector<double> values;
      values.reserve(taken.size());
      for (const Sample& sample : taken) values.push_back(static_cast<double>(value_of(sample)));
      writer.write({{"session_uuid", record_.session_uuid},
                    {"seq", seq},
                    {"kind", kind},
                    {"count", values.size()},
                    {"data", values}});
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
  for (const auto& [key, value] : options.labels) facts.insert({"label." + key, {value, false}});
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
