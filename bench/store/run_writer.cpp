#include "bench/store/run_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/step_series.h"
#include "bench/store/provenance.h"

namespace hvd::bench {
namespace {

/// Samples are stored in their memory layout; the schema specifies little-endian IEEE doubles.
static_assert(std::endian::native == std::endian::little && sizeof(double) == 8);

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

  /// Replacing the row of a stored run would delete its samples, so an existing row is updated.
  void write_run() {
    const std::optional<Estimate>&step = run_.step_seconds, &images = run_.images_per_second;
    RowWriter(database_, "run", 1)
        .write({
            {"uuid", run_.uuid},
            {"session_uuid", run_.session_uuid},
            {"origin", "measured"},
            {"phase", name(run_.phase)},
            {"status", name(run_.status)},
            {"status_reason", run_.status_reason},
            {"started_utc", run_.started_utc},
            {"finished_utc", run_.finished_utc.empty() ? Value() : run_.finished_utc},
            {"model", run_.model},
            {"batch_size", run_.batch_size},
            {"image_size", run_.image_size},
            {"auxiliary_head", run_.auxiliary_head},
            {"device", run_.device},
            {"compute_type", run_.compute_type},
            {"allreduce_type", run_.allreduce_type},
            {"schedule", run_.schedule},
            {"comm", run_.comm},
            {"data_plane", run_.data_plane},
            {"world_size", run_.world_size},
            {"allocation_size", run_.allocation_size},
            {"nodes", run_.nodes},
            {"threads", run_.threads},
            {"seed", run_.seed},
            {"traced", run_.traced},
            {"batches_per_iter", run_.batches_per_iter},
            {"warmup_steps", run_.warmup_steps},
            {"measured_steps", run_.measured_steps},
            {"stop_reason", run_.stop_reason},
            {"step_seconds", part(step, &Estimate::value)},
            {"step_seconds_low", part(step, &Estimate::low)},
            {"step_seconds_high", part(step, &Estimate::high)},
            {"images_per_second", part(images, &Estimate::value)},
            {"images_per_second_low", part(images, &Estimate::low)},
            {"images_per_second_high", part(images, &Estimate::high)},
            {"confidence", run_.confidence},
            {"parameters", run_.parameters},
            {"gradient_bytes", run_.gradient_bytes},
            {"flops_per_image", run_.flops_per_image},
            {"plan_hash", run_.plan_hash},
            {"buckets", run_.buckets},
            {"final_loss", run_.final_loss},
            {"checks", run_.checks},
            {"fingerprint", fingerprint(run_)},
        });
  }

  void write_provenance() {
    RowWriter writer(database_, "provenance");
    for (const auto& [key, fact] : run_.provenance) {
      writer.write(
          {{"run_uuid", run_.uuid}, {"key", key}, {"value", fact.value}, {"in_fingerprint", fact.in_fingerprint}});
    }
  }

  void write_ranks() {
    RowWriter writer(database_, "rank");
    for (const RankRecord& rank : run_.ranks) {
      writer.write({{"run_uuid", run_.uuid},
                    {"rank", rank.rank},
                    {"host", rank.host},
                    {"local_rank", rank.local_rank},
                    {"planned_bytes", rank.planned_bytes},
                    {"baseline_bytes", rank.baseline_bytes},
                    {"peak_bytes", rank.peak_bytes},
                    {"gradient_checksum", rank.gradient_checksum}});
    }
  }

  [[nodiscard]] bool is_stored(const StepSeries& series) const {
    const auto above_zero = [&series](const RankRecord& rank) {
      const std::vector<double>& values = rank.samples.*series.of_rank;
      return std::any_of(values.begin(), values.end(), [](double value) { return value > 0; });
    };
    switch (series.stored) {
      case Stored::kAlways: return true;
      case Stored::kOnGpus: return on_gpus(run_);
      case Stored::kIfAboveZero: return std::any_of(run_.ranks.begin(), run_.ranks.end(), above_zero);
    }
    return true;
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
    RowWriter writer(database_, "sample", 3);
    std::int64_t rows = 0;
    const auto write = [&](int rank, std::string_view kind, const std::vector<double>& values) {
      if (values.empty()) return;
      writer.write(
          {{"run_uuid", run_.uuid}, {"rank", rank}, {"kind", kind}, {"count", values.size()}, {"data", values}});
      ++rows;
    };
    for (const StepSeries& series : kStepSeries) {
      if (!is_stored(series)) continue;
      for (const RankRecord& rank : run_.ranks) write(rank.rank, series.kind, rank.samples.*series.of_rank);
    }
    write(0, "step_seconds_replicates", run_.step_replicates);
    write(0, "efficiency_replicates", run_.efficiency_replicates);
    return rows;
  }

  void write_decomposition() {
    RowWriter writer(database_, "decomposition");
    for (const DecompositionRow& row : run_.decomposition) {
      writer.write({{"run_uuid", run_.uuid},
                    {"component", row.component},
                    {"fraction", row.fraction},
                    {"seconds", row.seconds},
                    {"low", row.low},
                    {"high", row.high}});
    }
  }

  void write_operations() {
    RowWriter writer(database_, "operation");
    int seq = 0;
    for (const OperationRow& row : run_.operations) {
      writer.write({{"run_uuid", run_.uuid},
                    {"seq", seq++},
                    {"node", row.node},
                    {"kind", row.kind},
                    {"implementation", row.implementation},
                    {"library", row.library},
                    {"seconds", row.seconds},
                    {"flops", row.flops},
                    {"bytes", row.bytes}});
    }
  }

  Database& database_;
  const RunRecord& run_;
};

}  // namespace

void write_run(Database& database, const RunRecord& run) { RunWriter(database, run).write(); }

}  // namespace hvd::bench
