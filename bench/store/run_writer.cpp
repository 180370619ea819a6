#include "bench/store/run_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/measure/step_series.h"
#include "bench/store/provenance.h"

namespace hvd::bench {
namespace {

std::int64_t integer(std::uint64_t value) { return static_cast<std::int64_t>(value); }

/// Samples are stored in their memory layout; the schema specifies little-endian IEEE doubles.
static_assert(std::endian::native == std::endian::little && sizeof(double) == 8);

/// The columns of the table `run` after `uuid`, in the order in which write_run() binds them.
constexpr std::string_view kRunColumns =
    "session_uuid, origin, phase, status, status_reason, started_utc, finished_utc, model, batch_size, image_size,"
    " auxiliary_head, device, compute_type, allreduce_type, schedule, comm, data_plane, world_size, allocation_size,"
    " nodes, threads, seed, traced, batches_per_iter, warmup_steps, measured_steps, stop_reason, step_seconds,"
    " step_seconds_low, step_seconds_high, images_per_second, images_per_second_low, images_per_second_high,"
    " confidence, parameters, gradient_bytes, flops_per_image, plan_hash, buckets, final_loss, checks, fingerprint";

/// Returns SQL that inserts a run, or updates the row with the same uuid. Replacing that row would delete its samples.
std::string upsert_run() {
  std::string values = "?2";
  const auto commas = std::count(kRunColumns.begin(), kRunColumns.end(), ',');
  for (std::ptrdiff_t i = 0; i < commas; ++i) values += ", ?" + std::to_string(i + 3);
  return fmt::format("INSERT INTO run (uuid, {0}) VALUES (?1, {1}) ON CONFLICT (uuid) DO UPDATE SET ({0}) = ({1})",
                     kRunColumns, values);
}

class RunWriter {
 public:
  RunWriter(Database& database, const RunRecord& run) : database_(database), run_(run) {}

  void write() {
    write_run();
    write_samples();
    // Write these tables anew each time, because their rows are few and small.
    for (const char* const table : {"provenance", "rank", "decomposition", "operation"}) delete_rows(table);
    write_provenance();
    write_ranks();
    write_decomposition();
    write_operations();
  }

 private:
  void delete_rows(const std::string& table) {
    Statement(database_, fmt::format("DELETE FROM {} WHERE run_uuid = ?", table)).bind(run_.uuid).run();
  }

  std::int64_t stored_samples() {
    return Statement(database_, "SELECT count(*) FROM sample WHERE run_uuid = ?").bind(run_.uuid).integer();
  }

  void write_run() {
    Statement insert(database_, upsert_run());
    insert.bind(run_.uuid).bind(run_.session_uuid).bind("measured").bind(name(run_.phase)).bind(name(run_.status));
    insert.bind(run_.status_reason).bind(run_.started_utc);
    run_.finished_utc.empty() ? insert.bind_null() : insert.bind(run_.finished_utc);
    insert.bind(run_.model).bind(run_.batch_size).bind(run_.image_size).bind(std::int64_t{run_.auxiliary_head});
    insert.bind(run_.device).bind(run_.compute_type).bind(run_.allreduce_type).bind(run_.schedule).bind(run_.comm);
    insert.bind(run_.data_plane).bind(std::int64_t{run_.world_size}).bind(std::int64_t{run_.allocation_size});
    insert.bind(std::int64_t{run_.nodes}).bind(std::int64_t{run_.threads}).bind(integer(run_.seed));
    insert.bind(std::int64_t{run_.traced}).bind(std::int64_t{run_.batches_per_iter}).bind(run_.warmup_steps);
    insert.bind(run_.measured_steps).bind(run_.stop_reason);
    bind_estimate(insert, run_.step_seconds);
    bind_estimate(insert, run_.images_per_second);
    insert.bind(run_.confidence).bind(run_.parameters).bind(run_.gradient_bytes).bind(run_.flops_per_image);
    insert.bind(run_.plan_hash).bind(run_.buckets).bind(run_.final_loss).bind(run_.checks).bind(fingerprint(run_));
    insert.run();
  }

  void write_provenance() {
    Statement insert(database_, "INSERT INTO provenance (run_uuid, key, value, in_fingerprint) VALUES (?,?,?,?)");
    for (const auto& [key, fact] : run_.provenance) {
      insert.bind(run_.uuid).bind(key).bind(fact.value).bind(std::int64_t{fact.in_fingerprint}).run();
    }
  }

  void write_ranks() {
    Statement insert(database_,
                     "INSERT INTO rank (run_uuid, rank, host, local_rank, planned_bytes, baseline_bytes, peak_bytes,"
                     " gradient_checksum) VALUES (?,?,?,?,?,?,?,?)");
    for (const RankRecord& rank : run_.ranks) {
      insert.bind(run_.uuid).bind(std::int64_t{rank.rank}).bind(rank.host).bind(std::int64_t{rank.local_rank});
      insert.bind(rank.planned_bytes)
          .bind(rank.baseline_bytes)
          .bind(rank.peak_bytes)
          .bind(rank.gradient_checksum)
          .run();
    }
  }

  void write_samples() {
    const std::int64_t rows = upsert_samples();
    if (stored_samples() == rows) return;
    delete_rows("sample");  // at least one stored series no longer belongs to the run
    upsert_samples();
  }

  /// Inserts the series that are not stored yet, and updates the stored series that changed. If there are new samples,
  /// nearly all series have changed; otherwise none has. Returns the number of the run's series.
  std::int64_t upsert_samples() {
    Statement upsert(database_,
                     "INSERT INTO sample (run_uuid, rank, kind, count, data) VALUES (?,?,?,?,?)"
                     " ON CONFLICT (run_uuid, rank, kind) DO UPDATE SET count = excluded.count, data = excluded.data"
                     " WHERE count <> excluded.count OR data <> excluded.data");
    std::int64_t rows = 0;
    const auto write = [&](int rank, std::string_view kind, const std::vector<double>& values) {
      if (values.empty()) return;
      upsert.bind(run_.uuid).bind(std::int64_t{rank}).bind(kind).bind(static_cast<std::int64_t>(values.size()));
      upsert.bind_blob(std::as_bytes(std::span(values))).run();
      ++rows;
    };
    for (const RankRecord& rank : run_.ranks) {
      for (const StepSeries& series : kStepSeries) {
        if (series.gpu_only && run_.device != "cuda") continue;
        write(rank.rank, series.kind, rank.samples.*series.of_rank);
      }
    }
    write(0, "step_seconds_replicates", run_.step_replicates);
    write(0, "efficiency_replicates", run_.efficiency_replicates);
    return rows;
  }

  void write_decomposition() {
    Statement insert(
        database_,
        "INSERT INTO decomposition (run_uuid, component, fraction, seconds, low, high) VALUES (?,?,?,?,?,?)");
    for (const DecompositionRow& row : run_.decomposition) {
      insert.bind(run_.uuid)
          .bind(row.component)
          .bind(row.fraction)
          .bind(row.seconds)
          .bind(row.low)
          .bind(row.high)
          .run();
    }
  }

  void write_operations() {
    Statement insert(database_,
                     "INSERT INTO operation (run_uuid, seq, node, kind, implementation, library, seconds, flops, bytes)"
                     " VALUES (?,?,?,?,?,?,?,?,?)");
    std::int64_t seq = 0;
    for (const OperationRow& row : run_.operations) {
      insert.bind(run_.uuid).bind(seq++).bind(row.node).bind(row.kind).bind(row.implementation);
      insert.bind(std::int64_t{row.library}).bind(row.seconds).bind(row.flops).bind(row.bytes).run();
    }
  }

  Database& database_;
  const RunRecord& run_;
};

}  // namespace

void bind_estimate(Statement& insert, const std::optional<Estimate>& estimate) {
  if (estimate) {
    insert.bind(estimate->value).bind(estimate->low).bind(estimate->high);
  } else {
    insert.bind_null().bind_null().bind_null();
  }
}

void write_run(Database& database, const RunRecord& run) { RunWriter(database, run).write(); }

}  // namespace hvd::bench
