// Tests the cautions of the closing table, which say when an efficiency must not be believed, and its explanations.
#include "bench/session/notes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/base/errors.h"

namespace hvd::bench::notes_test {
namespace {

RunRecord run_of(Phase phase, int ranks) {
  RunRecord run;
  run.phase = phase;
  run.world_size = ranks;
  run.step_seconds = Estimate{.value = 0.1, .low = 0.09, .high = 0.11};
  run.ranks.resize(static_cast<std::size_t>(ranks));
  for (RankRecord& rank : run.ranks) rank.samples.step = rank.samples.exposed = rank.samples.host = {0.1, 0.1, 0.1};
  return run;
}

/// Counts the lines of the closing table that contain `text`.
std::ptrdiff_t cautions(const std::string& text, const Estimate& efficiency, std::size_t rounds, int ranks = 2) {
  const std::vector<RunRecord> runs{run_of(Phase::kSolo, 1), run_of(Phase::kNone, ranks), run_of(Phase::kFull, ranks)};
  Findings findings;
  findings.rounds = rounds;
  findings.efficiency = EfficiencyAnalysis{
      .efficiency = efficiency, .against_independent = efficiency, .rows = {}, .efficiency_replicates = {}};
  const std::vector<std::string> notes = closing_cautions(runs, findings, {});
  return std::count_if(notes.begin(), notes.end(),
                       [&](const std::string& note) { return note.find("caution: " + text) == 0; });
}

TEST(Cautions, OfAWarmUpThatEndedEarly) {
  const std::vector<RunRecord> runs{run_of(Phase::kFull, 1)};
  Findings findings;
  findings.warm_up = "warm-up: not steady after 40 steps (drift +5.0 % over the last 33)";
  EXPECT_TRUE(closing_cautions(runs, findings, {}).empty());
  findings.warmed_up = false;
  EXPECT_EQ(closing_cautions(runs, findings, {}), std::vector<std::string>{"caution: " + findings.warm_up});
}

constexpr Estimate kGood{.value = 0.95, .low = 0.92, .high = 0.98};

TEST(Cautions, OfFewRounds) {
  EXPECT_EQ(cautions("", kGood, 5), 0);
  EXPECT_EQ(cautions("the efficiency comes from 4 rounds", kGood, 4), 1);
  EXPECT_EQ(cautions("the efficiency comes from one round of its phases, so that it has no interval",
                     {.value = 0.95, .low = kNoInterval, .high = kNoInterval}, 1),
            1);
}

TEST(Cautions, OfAnEfficiencyThatCannotBe) {
  EXPECT_EQ(cautions("above 100 %", {.value = 1.2, .low = 1.1, .high = 1.3}, 5), 1);
  EXPECT_EQ(cautions("above 100 %", {.value = 1.01, .low = 0.97, .high = 1.04}, 5), 0) << "its interval holds 100 %";
  EXPECT_EQ(cautions("above 100 %", {.value = 1.002, .low = 1.001, .high = 1.003}, 5), 0) << "noise of sleeping ranks";
  EXPECT_EQ(cautions("above 100 %", {.value = 1.5, .low = kNoInterval, .high = kNoInterval}, 1), 1)
      << "without an interval";
  EXPECT_EQ(cautions("above 100 %", {.value = 1.2, .low = 1.1, .high = 1.3}, 5, 1), 0) << "there are no others";
}

std::string joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  return text;
}

TEST(Expected, IsTheQueueOfTheBuckets) {
  // Gradients are ready at 1, 2 and 4 ms, backward ends at 4.5 ms, each reduction takes 2 ms: they end at 7 ms.
  std::vector<RunRecord> runs{run_of(Phase::kSolo, 1), run_of(Phase::kNone, 2), run_of(Phase::kFull, 2)};
  Findings findings;
  findings.rounds = 5;
  findings.efficiency =
      EfficiencyAnalysis{.efficiency = kGood, .against_independent = kGood, .rows = {}, .efficiency_replicates = {}};
  findings.ready.emplace().backward_end_seconds = 4.5e-3;
  core::BucketPlan plan;
  for (const double ready : {1e-3, 2e-3, 4e-3}) {
    const std::size_t gradient = plan.buckets.size();
    findings.ready->gradients.push_back({.name = "g", .count = 1, .ready_seconds = ready});
    findings.bucket_seconds.push_back(2e-3);
    plan.buckets.push_back({.first = gradient, .last = gradient + 1});
  }
  SessionFacts facts;
  facts.spare_core = true;
  const auto explained = [&](const SessionFacts& known) {
    for (RunRecord& run : runs) run.provenance.clear();
    explain(runs, findings, plan, known);
    return joined(explanations(runs.back()));
  };
  std::string text = explained(facts);
  test::expect_contains(text, "2.50 ms expected (queue of the buckets), measured / expected 40.00");
  test::expect_contains(text, "expected 97.6 %");  // 100 / (100 + 2.5)

  // Without a core for the engine each reduction stops the compute, which therefore ends last: at 4.5 + 6 ms.
  text = explained({});
  test::expect_contains(text, "0.00 ms expected (queue of the buckets); with no core left over");
  test::expect_contains(text, "expected 94.3 %");  // 100 / (100 + 6)

  runs.back().device = "replay";  // which sleeps, and leaves its cores to the engine
  text = explained({});
  test::expect_contains(text, "2.50 ms expected (queue of the buckets), measured / expected 40.00\n");
  test::expect_contains(text, "expected 97.6 %");

  findings.bucket_seconds.clear();
  EXPECT_EQ(explained({}).find("expected"), std::string::npos) << "was not timed";
  EXPECT_FALSE(runs.back().provenance.at("measurement.efficiency").in_fingerprint);
}

TEST(Cautions, AreFactsOutsideTheFingerprintAndLinesInTheOrderOfTheirNames) {
  Provenance provenance;
  provenance.insert({"cpu.model", {"a processor", true}});
  add_caution(provenance, "zeal", "the last");
  add_caution(provenance, "bf16_without_amx", "replaced");
  add_caution(provenance, "bf16_without_amx", "the first");
  ASSERT_TRUE(provenance.contains("caution.bf16_without_amx"));
  EXPECT_FALSE(provenance.at("caution.bf16_without_amx").in_fingerprint);
  EXPECT_EQ(caution_lines(provenance), (std::vector<std::string>{"caution: the first", "caution: the last"}));
  EXPECT_TRUE(caution_lines({}).empty());
}

}  // namespace
}  // namespace hvd::bench::notes_test
