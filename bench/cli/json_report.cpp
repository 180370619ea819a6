#include <string_view>

#include "bench/cli/json_writer.h"
#include "bench/cli/report.h"
#include "bench/measure/decomposition.h"
#include "bench/session/notes.h"
#include "bench/store/build_info.h"
#include "bench/store/provenance.h"
#include "engine/base/json.h"

namespace hvd::bench {
namespace {

void write_estimate(JsonWriter& out, const std::string& key, const std::optional<Estimate>& estimate) {
  out.number(key, estimate ? std::optional(estimate->value) : std::nullopt);
  out.number(key + "_low", estimate ? std::optional(estimate->low) : std::nullopt);
  out.number(key + "_high", estimate ? std::optional(estimate->high) : std::nullopt);
}

void write_configuration(JsonWriter& out, const RunRecord& run) {
  out.text("uuid", run.uuid);
  out.text("phase", name(run.phase));
  out.text("status", name(run.status));
  out.text("status_reason", run.status_reason);
  out.text("started_utc", run.started_utc);
  out.text("finished_utc", run.finished_utc);
  out.text("model", run.model);
  out.text("unit", run.unit);
  out.integer("batch_size", run.batch_size);
  out.integer("image_size", run.image_size);
  out.truth("auxiliary_head", run.auxiliary_head);
  out.text("device", run.device);
  out.text("compute_type", run.compute_type);
  out.text("allreduce_type", run.allreduce_type);
  out.text("schedule", run.schedule);
  out.text("comm", run.comm);
  out.text("data_plane", run.data_plane);
  out.integer("world_size", run.world_size);
  out.integer("allocation_size", run.allocation_size);
  out.integer("nodes", run.nodes);
  out.integer("threads", run.threads);
  out.text("seed", std::to_string(run.seed));  // as text: JSON numbers cannot hold every 64-bit integer
  out.truth("traced", run.traced);
  out.integer("batches_per_iter", run.batches_per_iter);
}

void write_results(JsonWriter& out, const RunRecord& run) {
  out.integer("warmup_steps", run.warmup_steps);
  out.integer("measured_steps", run.measured_steps);
  out.text("stop_reason", run.stop_reason);
  write_estimate(out, "step_seconds", run.step_seconds);
  write_estimate(out, "images_per_second", run.images_per_second);
  out.number("confidence", run.confidence);
  out.integer("parameters", run.parameters);
  out.integer("gradient_bytes", run.gradient_bytes);
  out.number("flops_per_image", run.flops_per_image);
  out.text("plan_hash", run.plan_hash);
  out.integer("buckets", run.buckets);
  out.number("final_loss", run.final_loss);
  out.text("checks", run.checks);
  out.text("fingerprint", fingerprint(run));
}

/// Writes the answer about the efficiency as text, as the closing table has it.
void write_efficiency(JsonWriter& out, const RunRecord& run) {
  for (const DecompositionRow& row : run.decomposition) {
    if (row.component == "efficiency") out.text("efficiency", efficiency_text(estimate_of(row)));
  }
}

void write_rows(JsonWriter& out, const RunRecord& run) {
  out.array("ranks", [&](JsonWriter& rows) {
    for (const RankRecord& rank : run.ranks) {
      rows.object({}, [&](JsonWriter& row) {
        row.integer("rank", rank.rank);
        row.text("host", rank.host);
        row.integer("local_rank", rank.local_rank);
        row.integer("planned_bytes", rank.planned_bytes);
        row.integer("baseline_bytes", rank.baseline_bytes);
        row.integer("peak_bytes", rank.peak_bytes);
        row.text("gradient_checksum", rank.gradient_checksum);
      });
    }
  });
  out.array("decomposition", [&](JsonWriter& rows) {
    for (const DecompositionRow& part : run.decomposition) {
      rows.object({}, [&](JsonWriter& row) {
        row.text("component", part.component);
        // An efficiency without an interval is not a result.
        const bool known = part.component != "efficiency" || estimate_of(part).has_interval();
        row.number("fraction", known ? std::optional(part.fraction) : std::nullopt);
        row.number("seconds", known ? std::optional(part.seconds) : std::nullopt);
        row.number("low", part.low);
        row.number("high", part.high);
      });
    }
  });
  out.array("operations", [&](JsonWriter& rows) {
    for (const OperationRow& operation : run.operations) {
      rows.object({}, [&](JsonWriter& row) {
        row.text("node", operation.node);
        row.text("kind", operation.kind);
        row.text("implementation", operation.implementation);
        row.truth("library", operation.library);
        row.number("seconds", operation.seconds);
        row.number("flops", operation.flops);
        row.number("bytes", operation.bytes);
      });
    }
  });
  out.object("provenance", [&](JsonWriter& facts) {
    for (const auto& [key, fact] : run.provenance) facts.text(key, fact.value);
  });
}

void write_validation(JsonWriter& out, const Validation& validation) {
  out.integer("steps", validation.steps);
  out.integer("timed_steps", validation.timed_steps);
  out.integer("turns", validation.turns);
  out.array("groups", [&](JsonWriter& groups) {
    for (const std::string& group : validation.groups) groups.element(group);
  });
  out.array("ranks", [&](JsonWriter& rows) {
    for (std::size_t r = 0; r < validation.ranks.size(); ++r) {
      const ValidatedRank& rank = validation.ranks[r];
      const auto of_time = [&](double Slowness::*field) {
        return rank.time ? std::optional((*rank.time).*field) : std::nullopt;
      };
      rows.object({}, [&](JsonWriter& row) {
        row.integer("rank", static_cast<std::int64_t>(r));
        row.text("host", rank.host);
        row.text("gpu", rank.gpu);
        row.integer("group", static_cast<std::int64_t>(rank.group));
        row.number("seconds", rank.seconds);
        row.number("slower", of_time(&Slowness::slower));
        row.number("slower_low", of_time(&Slowness::low));
        row.number("slower_high", of_time(&Slowness::high));
        row.number("score", rank.time ? rank.time->score : std::nullopt);
        row.text("gradients", rank.gradients);
        row.text("weights", rank.weights);
      });
    }
  });
  out.array("findings", [&](JsonWriter& rows) {
    for (const ValidationFinding& finding : validation.findings) {
      rows.object({}, [&](JsonWriter& row) {
        row.text("kind", name(finding.kind));
        row.array("ranks", [&](JsonWriter& ranks) {
          for (const int rank : finding.ranks) ranks.element(rank);
        });
        row.text("text", finding.text);
      });
    }
  });
}

}  // namespace

std::string json_report(const SessionResult& result, const StoredIn& stored) {
  std::string out;
  out += '{';
  JsonWriter top(out, 1);
  const RunRecord* run = headline(result);
  const bool measured = run != nullptr && run->images_per_second.has_value();
  top.text("hvd_bench", build_info().version);
  top.text("session_uuid", run == nullptr ? "" : run->session_uuid);
  top.number("total_images_per_second", measured ? std::optional(run->images_per_second->value) : std::nullopt);
  stored.file.empty() ? top.null("db") : top.text("db", stored.file);
  stored.problem.empty() ? top.null("db_problem") : top.text("db_problem", stored.problem);
  top.array("notes", [&](JsonWriter& notes) {
    for (const std::string& note : result.notes) notes.element(note);
    if (run == nullptr) return;
    for (const std::string& note : explanations(*run)) notes.element(note);
  });
  if (result.validation) {
    top.object("validation", [&](JsonWriter& validation) { write_validation(validation, *result.validation); });
  }
  top.array("runs", [&](JsonWriter& runs) {
    for (const RunRecord& record : result.runs) {
      runs.object({}, [&](JsonWriter& row) {
        write_configuration(row, record);
        write_results(row, record);
        write_efficiency(row, record);
        write_rows(row, record);
      });
    }
  });
  return out + "\n}\n";
}

}  // namespace hvd::bench
