// RunRecord: the configuration and the results of one run, as plain data. The training loop fills the record; the
// result store, the JSON output and the closing table read it. The fields match the tables of results/schema.sql.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/decomposition.h"
#include "bench/measure/resample.h"
#include "bench/measure/step_series.h"

namespace hvd::bench {

enum class Phase : std::uint8_t {
  kFull,  ///< every rank trains and reduces
  kNone,  ///< every rank trains, nothing is reduced
  kSolo,  ///< rank 0 trains alone while the other ranks sleep
};
enum class RunStatus : std::uint8_t { kRunning, kComplete, kIncomplete };

/// Return the words for the store and the JSON output: "full", "none", "solo"; "running", "complete", "incomplete".
std::string_view name(Phase phase) noexcept;
std::string_view name(RunStatus status) noexcept;

struct RankRecord {
  int rank = 0;
  std::string host;
  int local_rank = 0;
  std::int64_t planned_bytes = 0, baseline_bytes = 0, peak_bytes = 0;
  std::string gradient_checksum;
  RankSamples samples;
};

struct ProvenanceFact {
  std::string value;
  bool in_fingerprint = false;
};
using Provenance = std::map<std::string, ProvenanceFact>;

/// Records why a reader should doubt this run's figures. Stored as the fact `caution.<name>`, outside the fingerprint,
/// and printed below the closing table. `name` is snake_case; `text` is one line, the observation and advice, or empty:
/// then nothing is recorded.
void add_caution(Provenance& provenance, std::string_view name, std::string text);
/// Returns the texts of all cautions, each as "caution: <text>", in the order of their names.
std::vector<std::string> caution_lines(const Provenance& provenance);

struct OperationRow {
  std::string node, kind, implementation;
  bool library = false;
  double seconds = 0, flops = 0, bytes = 0;
};

struct RunRecord {
  std::string uuid, session_uuid;
  Phase phase = Phase::kFull;
  RunStatus status = RunStatus::kRunning;
  std::string status_reason;
  std::string started_utc, finished_utc;
  std::string model;
  std::int64_t batch_size = 0, image_size = 0;
  std::string unit = "images";  ///< of batch_size and images_per_second; stored as the fact work.unit
  bool auxiliary_head = false;
  std::string device, compute_type, allreduce_type, schedule, comm, data_plane;
  int world_size = 1, allocation_size = 1, nodes = 1, threads = 1;
  std::uint64_t seed = 1;
  bool traced = false;
  int batches_per_iter = 1;
  std::int64_t warmup_steps = 0, measured_steps = 0;
  std::string stop_reason;
  std::optional<Estimate> step_seconds, images_per_second;
  /// Bootstrap replicates of step_seconds and, for phase full of an interleaved session, of the efficiency. Empty if
  /// the figure has no interval.
  std::vector<double> step_replicates, efficiency_replicates;
  double confidence = 0.95;
  std::int64_t parameters = 0, gradient_bytes = 0;
  double flops_per_image = 0;
  std::string plan_hash;
  std::int64_t buckets = 0;
  std::optional<double> final_loss;
  std::string checks;
  Provenance provenance;
  std::vector<RankRecord> ranks;
  std::vector<DecompositionRow> decomposition;
  std::vector<OperationRow> operations;
};

/// Returns true if the gradients of `run`, which may be a replay, lay in GPU memory. Pure.
bool on_gpus(const RunRecord& run);

}  // namespace hvd::bench
