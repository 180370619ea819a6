#include "bench/cli/analyse/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bench/measure/decomposition.h"
#include "bench/measure/median.h"
#include "bench/measure/own_training.h"
#include "bench/session/message.h"
#include "bench/session/records.h"
#include "bench/store/result_store.h"
#include "models/replay/replay.h"

namespace hvd::bench {
namespace {

double milliseconds(double seconds) { return 1e3 * seconds; }

double seconds_of(const EfficiencyAnalysis& analysis, std::string_view component) {
  for (const DecompositionRow& row : analysis.rows) {
    if (row.component == component) return row.seconds;
  }
  return 0;
}

void add(RunRecord& run, const char* fact, std::string text) {
  run.provenance.insert_or_assign(fact, ProvenanceFact{std::move(text), false});
}

/// Returns the record of a phase without samples.
RunRecord describe_phase(const RunRecord& common, Phase phase, const std::string& session_uuid) {
  RunRecord run = common;
  run.uuid = new_uuid();
  run.session_uuid = session_uuid;
  run.phase = phase;
  if (phase != Phase::kFull) run.schedule = "none";
  run.data_plane = phase == Phase::kFull ? run.comm : "none";
  if (phase != Phase::kSolo) return run;
  run.comm = "solo";
  run.world_size = run.nodes = 1;
  run.ranks.resize(1);
  return run;
}

/// Puts the samples of all rounds into the record, without series that no program but hvd_bench measures.
void fill(RunRecord& run, std::span<const Round> rounds, std::vector<RankSamples> Round::*of_phase) {
  for (const Round& round : rounds) {
    const std::vector<RankSamples>& ranks = round.*of_phase;  // empty if the last round ended before this phase
    for (std::size_t r = 0; r < ranks.size(); ++r) append(run.ranks[r].samples, ranks[r]);
  }
  std::vector<std::vector<double>> steps;
  for (RankRecord& rank : run.ranks) {
    rank.samples.reduce.clear();
    rank.samples.control.clear();
    rank.samples.copy.clear();
    steps.push_back(rank.samples.step);
  }
  fill_step_time(run, max_over_ranks(steps));
  if (!run.ranks.front().samples.loss.empty()) run.final_loss = mean_of_last_losses(run);
}

std::string exposed_text(const EfficiencyAnalysis& analysis, bool measured) {
  return fmt::format("exposed communication per step: {:.2f} ms {}",
                     milliseconds(seconds_of(analysis, "exposed_communication")),
                     measured ? "by the ranks' own clocks" : "as full minus none: the ranks had no clock for it");
}

std::string late_text(const LateRank& late, const std::string& host) {
  std::string text = fmt::format("rank {} on {}: its steps take {:.0f} ms longer than the others' in phase none",
                                 late.rank, host, milliseconds(late.seconds.value));
  if (!late.part.empty()) text += fmt::format(", {:.0f} ms of it in {}", milliseconds(late.part_seconds), late.part);
  return text;
}

std::vector<std::string> cautions(const RunRecord& full, const EfficiencyAnalysis& analysis, std::size_t rounds) {
  std::vector<std::string> lines;
  if (full.status == RunStatus::kIncomplete) {
    lines.push_back("caution: incomplete, what was measured until then: " + full.status_reason);
  }
  if (rounds < kMinRoundsToBelieve) {
    lines.push_back(
        fmt::format("caution: the efficiency comes from {} round{} of its phases; from fewer than {} its "
                    "interval is often too narrow, and one round has none; measure more rounds",
                    rounds, rounds == 1 ? "" : "s", kMinRoundsToBelieve));
  }
  if (analysis.efficiency.has_interval() && !is_resolved(analysis.efficiency)) {
    lines.emplace_back("caution: the efficiency is not resolved; measure on quiet machines, or in more rounds");
  }
  return lines;
}

}  // namespace

SessionResult analyse_samples(SamplesText samples, const Provenance& program, const std::string& session_uuid) {
  const std::span<Round> whole(samples.rounds.data(), samples.whole);
  if (!samples.exposed) std::for_each(whole.begin(), whole.end(), derive_exposed);
  const EfficiencyAnalysis analysis = analyse_efficiency(whole, {.seed = samples.run.seed});

  RunRecord& common = samples.run;
  for (const auto& [key, fact] : program) common.provenance.try_emplace(key, ProvenanceFact{fact.value, false});
  if (common.unit != models::kImages) common.provenance["work.unit"] = {common.unit, true};
  add(common, "measurement.rounds", std::to_string(samples.whole));
  SessionResult result;
  for (const auto& [phase, of_phase] : {std::pair{Phase::kSolo, &Round::solo}, std::pair{Phase::kNone, &Round::none},
                                        std::pair{Phase::kFull, &Round::full}}) {
    fill(result.runs.emplace_back(describe_phase(common, phase, session_uuid)), samples.rounds, of_phase);
  }
  RunRecord& full = result.runs.back();
  full.decomposition = analysis.rows;
  std::erase_if(full.decomposition, [](const DecompositionRow& row) {
    return row.component == "control_plane";  // nothing is negotiated there
  });
  full.efficiency_replicates = analysis.efficiency_replicates;
  result.notes.push_back(exposed_text(analysis, samples.exposed));
  add(full, "measurement.exposed_communication", result.notes.back());
  if (const std::optional<LateRank> late = late_rank(whole, {.seed = common.seed})) {
    result.notes.push_back(late_text(*late, full.ranks[late->rank].host));
    add(full, "measurement.late_rank", result.notes.back());
  }
  for (std::string& caution : cautions(full, analysis, samples.whole)) result.notes.push_back(std::move(caution));
  return result;
}

}  // namespace hvd::bench
