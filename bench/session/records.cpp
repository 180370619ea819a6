#include "bench/session/records.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "bench/measure/median.h"
#include "bench/store/host_facts.h"
#include "bench/store/result_store.h"
#include "bench/train/host_trainer.h"
#include "bench/tune/crossovers.h"
#include "bench/world/training_options.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

std::string number(double value) { return fmt::format("{:.9g}", value); }

/// Returns a record that lacks the samples, the identity and the provenance.
RunRecord describe_run(const SessionParts& session, Phase phase) {
  const Setup& setup = session.setup;
  const SessionFacts& facts = session.facts;
  Trainer& trainer = session.trainer;
  const Engine& engine = trainer.engine();
  const comm::Topology& topology = engine.topology();
  const bool reduces = phase == Phase::kFull;
  RunRecord run;
  run.phase = phase;
  run.model = setup.model.model;
  run.batch_size = setup.model.batch_size;
  run.image_size = setup.model.image_size;
  run.unit = setup.unit();
  run.auxiliary_head = setup.model.auxiliary_head;
  run.device = setup.device_name();
  run.compute_type = setup.compute_name();
  run.allreduce_type = hvd::name(setup.allreduce);
  run.schedule = hvd::name(reduces ? setup.schedule : Schedule::kNone);
  run.comm = phase == Phase::kSolo ? "solo" : facts.comm;  // phase solo communicates with no other rank
  run.data_plane = reduces ? engine.data_plane() : "none";
  run.world_size = phase == Phase::kSolo ? 1 : topology.size;
  run.allocation_size = topology.size;
  run.nodes = phase == Phase::kSolo ? 1 : topology.nodes;
  run.threads = facts.threads;
  run.seed = setup.seed;
  run.traced = facts.traced;
  run.batches_per_iter = session.options.num_batches_per_iter;
  run.parameters = trainer.facts().parameters;
  run.gradient_bytes = static_cast<std::int64_t>(trainer.train_step().memory().gradients);
  run.flops_per_image = trainer.facts().flops_per_image;
  if (reduces) {
    run.plan_hash = hex64(engine.plan().hash);
    run.buckets = static_cast<std::int64_t>(engine.plan().buckets.size());
  }
  for (int r = 0; r < run.world_size; ++r) {
    RankRecord rank;
    rank.rank = r;
    const auto index = static_cast<std::size_t>(r);
    rank.host = topology.hosts.at(index);
    const auto before = topology.hosts.begin() + r;
    rank.local_rank = static_cast<int>(std::count(topology.hosts.begin(), before, rank.host));
    run.ranks.push_back(rank);
  }
  return run;
}

/// Adds the provenance that only a session knows. Does not change the keys that `run` already has.
void add_provenance(RunRecord& run, const SessionParts& session) {
  const Options& options = session.options;
  const Setup& setup = session.setup;
  const SessionFacts& facts = session.facts;
  Trainer& trainer = session.trainer;
  const auto add = [&](const std::string& key, const std::string& value, bool in_fingerprint) {
    if (!value.empty()) run.provenance.try_emplace(key, ProvenanceFact{value, in_fingerprint});
  };
  add("compute.backend", trainer.train_step().description(), true);
  if (const StoredLayouts stored = stored_layouts(trainer.train_step()); !stored.layouts.empty()) {
    // The layouts are not in the fingerprint, because processor and library determine them. Records before 2026-11-23
    // have no layouts.
    add("compute.layouts", hex64(stored.hash()), false);
  }
  // Runs of programs before 2026-11-29 lack this fact. Replays of any profile of one name had one fingerprint.
  add("replay.profile", setup.replay_hash, true);
  if (run.unit != models::kImages) add("work.unit", run.unit, false);  // the fact replay.profile tells it apart
  if (options.replay_shrink > 1) add("replay.gradient_divisor", std::to_string(options.replay_shrink), true);
  add("comm.library", trainer.engine().library(), true);
  if (session.gpu != nullptr) {
    add_gpu_options(run.provenance, options.gpu, facts.graphs);
    if (options.gpu.tunes()) add("gpu.winners", session.gpu->engines(), false);
    if (const auto& bound = session.gpu->bound()) run.provenance.merge(bound_facts(*bound));
  } else {
    // Records without this fact may have used Winograd's algorithm, if the library has it.
    if (run.device == "cpu" && !options.winograd) add("compute.winograd", "no", true);
    if (const comm::Thresholds& at = options.comm_options.thresholds; at != comm::Thresholds{}) {
      add("comm.crossovers", crossover_text(at), true);
    }
  }
  run.provenance.insert(facts.gpus.provenance.begin(), facts.gpus.provenance.end());
  add("engine.first_bucket_bytes", std::to_string(options.engine.buckets.first_bucket_bytes), true);
  for (const auto& [key, value] : options.labels) run.provenance.insert({"label." + key, {value, false}});
  Options rows = options;
  training_table(rows).record(run.provenance, session.gpu != nullptr);
  if (run.device == "cpu") {
    add_caution(run.provenance, "bf16_without_amx", models::onednn_slow_reason(setup.compute));
  }
  add_caution(run.provenance, "reference_code", trainer.train_step().slow_reason());
  // Records without this fact have labels that cycle, and are comparable with runs of --labels cycled.
  if (run.device != "replay") {
    add("data.labels", std::string(models::name(options.label_rule)), options.label_rule == models::LabelRule::kFresh);
  }
  add("sgd.learning_rate", number(setup.sgd.learning_rate), false);
  add("sgd.learning_rate_scaled",
      number(scaled_learning_rate(setup.sgd.learning_rate, trainer.engine().size(), setup.rate_scaling)), false);
  add("sgd.learning_rate_bound", number(setup.rate_scaling.bound), false);
  add("sgd.learning_rate_warm_up_steps", std::to_string(setup.rate_scaling.warm_up_steps), false);
  add("sgd.momentum", number(setup.sgd.momentum), false);
  add("sgd.weight_decay", number(setup.sgd.weight_decay), false);
}

}  // namespace

std::string OtherUse::text() const { return fmt::format("{:.2f} of {}", used, processors); }

OtherPrograms::OtherPrograms(const Engine& engine) : engine_(engine), host_seconds_before_(host_processor_seconds()) {}

std::optional<OtherUse> OtherPrograms::use(std::span<const Answer> answers) const {
  if (host_seconds_before_ <= 0) return std::nullopt;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  double others = host_processor_seconds() - host_seconds_before_;
  const std::vector<std::string>& hosts = engine_.topology().hosts;
  for (std::size_t r = 0; r < answers.size(); ++r) {
    if (hosts[r] == hosts[0]) others -= answers[r].processor_seconds;
  }
  return OtherUse{std::max(others / seconds, 0.0), ::sysconf(_SC_NPROCESSORS_ONLN)};
}

RunRecord begin_record(const SessionParts& session, Phase phase) {
  RunRecord run = describe_run(session, phase);
  if (session.prepare) session.prepare(run);
  if (run.started_utc.empty()) run.started_utc = utc_now();
  add_provenance(run, session);
  return run;
}

void mark_incomplete(RunRecord& run, const Error& error, const Engine& engine) {
  run.status = RunStatus::kIncomplete;
  run.status_reason = error.what();
  run.finished_utc = utc_now();
  if (std::string table = engine.flight_record(); !table.empty()) {
    run.provenance["engine.flight_record"] = {std::move(table), false};
  }
}

void fill_samples(RunRecord& run, const PhaseLog& log) {
  for (std::size_t r = 0; r < run.ranks.size(); ++r) run.ranks[r].samples = log.ranks()[r];
  run.measured_steps = 0;
  if (log.samples() == 0) return;
  fill_step_time(run, log.step_times());
  run.final_loss = mean_of_last_losses(run);
}

void fill_step_time(RunRecord& run, std::span<const double> step_times) {
  run.measured_steps = static_cast<std::int64_t>(step_times.size()) * run.batches_per_iter;
  Bootstrap step = median_time(step_times, {.confidence = run.confidence, .seed = run.seed});
  run.step_seconds = step.estimate;
  run.step_replicates = std::move(step.replicates);
  run.images_per_second =
      images_per_second(*run.step_seconds, static_cast<double>(run.world_size) * static_cast<double>(run.batch_size));
}

double mean_of_last_losses(const RunRecord& run) {
  double sum = 0;
  for (const RankRecord& rank : run.ranks) sum += rank.samples.loss.back();
  return sum / static_cast<double>(run.ranks.size());
}

void fill_use(RunRecord& run, std::span<const Answer> answers, const std::optional<OtherUse>& others) {
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    run.ranks[r].planned_bytes = answers[r].planned_bytes;
    run.ranks[r].baseline_bytes = answers[r].baseline_bytes;
    run.ranks[r].peak_bytes = answers[r].peak_bytes;
  }
  if (others) run.provenance["measurement.other_processors"] = {others->text(), false};
}

}  // namespace hvd::bench
