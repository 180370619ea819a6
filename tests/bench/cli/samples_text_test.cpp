#include "bench/cli/analyse/samples_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/cli/analyse/analysis.h"
#include "engine/base/error.h"
#include "engine/base/philox.h"

namespace hvd::bench::samples_text_test {
namespace {

const char* const kHead =
    "hvd-samples 1\n"
    "model my net \xc3\xa9\n"
    "unit sequences\n"
    "units_per_rank 8\n"
    "device torch\n"
    "schedule ddp\n"
    "comm gloo\n"
    "compute_type bf16\n"
    "allreduce_type fp32\n"
    "threads 2\n"
    "parameters 1000\n"
    "gradient_bytes 4000\n"
    "warmup_steps 5\n"
    "started_utc 2026-11-20T20:56:00.123Z\n"
    "finished_utc 2026-11-20T20:57:00.123Z\n";
const char* const kRanks =
    "fact torch.version 1 2.15.0+cpu\n"
    "fact work.note 0 batch of a b\n"
    "rank 0 0 n1\n"
    "rank 1 0 n2\n";
const char* const kSolo =
    "phase solo\n"
    "rank 0\n"
    "step_seconds 0.5 0.5\n"
    "input_seconds 0.125 0.125\n"
    "compute_seconds 0.25 0.25\n"
    "update_seconds 0.125 0.125\n";
const char* const kNone =
    "phase none\n"
    "rank 0\n"
    "step_seconds 0.5\n"
    "input_seconds 0.125\n"
    "compute_seconds 0.25\n"
    "update_seconds 0.125\n"
    "rank 1\n"
    "step_seconds 0.75\n"
    "input_seconds 0.125\n"
    "compute_seconds 0.5\n"
    "update_seconds 0.125\n";
const char* const kFull =
    "phase full\n"
    "rank 0\n"
    "step_seconds 1.0 1 1e0\n"
    "input_seconds 0.125 0.125 0.125\n"
    "compute_seconds 0.25 0.25 0.25\n"
    "exposed_seconds 0.5 0.5 0.5\n"
    "update_seconds 0.125 0.125 0.125\n"
    "loss 1.5 -2 3\n"
    "rank 1\n"
    "step_seconds 1 1 1\n"
    "input_seconds 0.125 0.125 0.125\n"
    "compute_seconds 0.5 0.5 0.5\n"
    "exposed_seconds 0.25 0.25 0.25\n"
    "update_seconds 0.125 0.125 0.125\n"
    "loss 1 1 1\n";

std::string whole_round(int number) { return "round " + std::to_string(number) + "\n" + kSolo + kNone + kFull; }
std::string head(const std::string& status = "status complete\n") { return kHead + status + kRanks; }
std::string text() { return head() + whole_round(1) + whole_round(2) + "end 2\n"; }

/// Returns `text` with the first `from` replaced. A test that replaces nothing fails.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return "the text has no '" + from + "'";
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  try {
    (void)parse_samples(text, "mine.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(SamplesText, EveryLine) {
  const SamplesText read = parse_samples(text(), "mine.txt");
  EXPECT_EQ(read.run.model, "my net \xc3\xa9");
  EXPECT_EQ(read.run.unit, "sequences");
  EXPECT_EQ(read.run.batch_size, 8);
  EXPECT_EQ(read.run.device + read.run.schedule + read.run.comm, "torchddpgloo");
  EXPECT_EQ(read.run.compute_type + read.run.allreduce_type, "bf16fp32");
  EXPECT_EQ(read.run.threads, 2);
  EXPECT_EQ(read.run.parameters, 1000);
  EXPECT_EQ(read.run.gradient_bytes, 4000);
  EXPECT_EQ(read.run.warmup_steps, 5);
  EXPECT_EQ(read.run.finished_utc, "2026-11-20T20:57:00.123Z");
  EXPECT_EQ(read.run.provenance.at("torch.version").value, "2.15.0+cpu");
  EXPECT_TRUE(read.run.provenance.at("torch.version").in_fingerprint);
  EXPECT_EQ(read.run.provenance.at("work.note").value, "batch of a b");
  EXPECT_EQ(read.run.world_size, 2);
  EXPECT_EQ(read.run.nodes, 2);
  EXPECT_EQ(read.run.ranks.at(1).host, "n2");
  ASSERT_EQ(read.rounds.size(), 2U);
  EXPECT_EQ(read.whole, 2U);
  EXPECT_TRUE(read.exposed && read.loss);
  EXPECT_EQ(read.rounds[1].none.at(1).step, std::vector<double>{0.75});
  EXPECT_EQ(read.rounds[0].full.at(0).exposed, (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(read.rounds[0].full.at(0).control, (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(read.rounds[0].full.at(0).loss, (std::vector<double>{1.5, -2, 3}));
}

TEST(SamplesText, AnIncompleteTrainingMayEndInItsLastRound) {
  const std::string incomplete = head("status incomplete\nstatus_reason rank 1 was lost\n") + whole_round(1);
  for (const std::string& end : {std::string("round 2\n") + kSolo, std::string("round 2\n") + kSolo + kNone}) {
    const SamplesText read = parse_samples(incomplete + end + "end 2\n", "mine.txt");
    EXPECT_EQ(read.whole, 1U);
    EXPECT_EQ(read.rounds.size(), 2U);
    EXPECT_TRUE(read.rounds[1].full.empty());
    EXPECT_EQ(read.run.status_reason, "rank 1 was lost");
  }
  EXPECT_EQ(parse_samples(incomplete + "end 1\n", "mine.txt").whole, 1U);
  EXPECT_EQ(refusal(incomplete + "round 2\nend 2\n"), "mine.txt:56: 'end' cannot stand here; possible: phase");
  EXPECT_NE(refusal(head("status incomplete\nstatus_reason x\n") + "round 1\n" + kSolo + "end 1\n"), "accepted");
  EXPECT_NE(refusal(head() + whole_round(1) + "round 2\n" + kSolo + "end 2\n"), "accepted") << "status complete";
}

TEST(SamplesText, RefusesWithTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {with(text(), "hvd-samples 1", "hvd-samples 2"), "mine.txt:1: is not a text of samples"},
      {with(text(), "model my", "model \x1b[31mmy"), "mine.txt:2: '\\x1b[31mmy net"},
      {with(text(), "model my net \xc3\xa9", "model my \xff"), "is not printable UTF-8"},
      {with(text(), "model my", "model " + std::string(200, 'x') + "my"),
       "mine.txt:2: a text must have 1 to 200 bytes"},
      {with(text(), "model my net \xc3\xa9\n", "model\n"), "mine.txt:2: a text is missing"},
      {with(text(), "unit sequences", "unit Sequences"), "mine.txt:3: the unit of work must be 1 to 20 small letters"},
      {with(text(), "units_per_rank 8", "units_per_rank 0"), "mine.txt:4: '0' is not a whole number from 1 to"},
      {with(text(), "device torch", "device cpu"), "mine.txt:5: 'cpu' is none of torch"},
      {with(text(), "schedule ddp", "schedule static"), "'static' is none of ddp"},
      {with(text(), "comm gloo", "comm mpi"), "'mpi' is none of gloo, nccl"},
      {with(text(), "compute_type bf16", "compute_type int4"), "'int4' is none of fp32"},
      {with(text(), "threads 2", "threads two"), "mine.txt:10: 'two' is not a whole number"},
      {with(text(), "20:56:00.123Z", "20:56:00Z"), "mine.txt:14: '2026-11-20T20:56:00Z' is not a time"},
      {with(text(), "11-20T20:56:00.123Z", "13-20T20:56:00.123Z"), "mine.txt:14: '2026-13-20T20:56:00.123Z' is not"},
      {with(text(), "11-20T20:56:00.123Z", "02-30T20:56:00.123Z"), "mine.txt:14: '2026-02-30T20:56:00.123Z' is not"},
      {with(text(), "20T20:56:00.123Z", "20T20:60:00.123Z"), "mine.txt:14: '2026-11-20T20:60:00.123Z' is not a time"},
      {with(text(), "exposed_seconds 0.5 0.5 0.5", "exposed_seconds 0.5 0.5 80000"),
       "the parts of step 3 take 80000.5 s, and the step takes 1 s"},
      {with(text(), "loss 1.5", "loss 1.7e308"), "1.7e308"},
      {with(text(), "20T20:57", "19T20:57"), "mine.txt:15: the training ended before it began"},
      {with(text(), "status complete", "status running"), "'running' is none of complete, incomplete"},
      {with(text(), "status complete", "status incomplete"), "'fact' cannot stand here; possible: status_reason"},
      {with(text(), "torch.version", "caution.x"), "mine.txt:17: 'caution.x' is not the key of a fact"},
      {with(text(), "torch.version", "torch."), "'torch.' is not the key of a fact"},
      {with(text(), "torch.version", "torch.Version"), "'torch.Version' is not the key of a fact"},
      {with(text(), "torch.version", "work.unit"), "follows from the line 'unit'"},
      {with(text(), "torch.version 1", "work.note 1"), "mine.txt:18: the fact work.note stands there twice"},
      {with(text(), "torch.version 1", "torch.version 2"), "'2' is not a whole number from 0 to 1"},
      {with(text(), "rank 1 0 n2\n", ""), "mine.txt:20: two ranks or more"},
      {with(text(), "rank 1 0 n2", "rank 2 0 n2"), "mine.txt:20: '2' is not a whole number from 1 to 1"},
      {with(text(), "rank 1 0 n2", "rank 1 0 n2 n3"), "'n3' is one word too many"},
      {with(text(), "round 2", "round 3"), "'3' is not a whole number from 2 to 2"},
      {with(text(), "phase none", "phase full"), "'full' is none of none"},
      {with(text(), "step_seconds 0.5 0.5", "step_seconds 0.5 nan"), "'nan' is not a number from 1e-09 to 86400"},
      {with(text(), "step_seconds 0.5 0.5", "step_seconds 0 0.5"), "mine.txt:24: '0' is not a number"},
      {with(text(), "step_seconds 0.5 0.5", "step_seconds 0.5 86401"), "'86401' is not a number"},
      {with(text(), "step_seconds 0.5 0.5", "step_seconds 0.5  0.5"), "'' is not a number"},
      {with(text(), "input_seconds 0.125 0.125", "input_seconds 0.125 0.5"), "step 2 waits 0.5 s for its batch"},
      {with(text(), "input_seconds 0.125 0.125\n", ""), "input_seconds must be there for every rank and round"},
      {with(text(), "compute_seconds 0.25 0.25", "compute_seconds 0.25"),
       "mine.txt:26: 1 values, and step_seconds has 2"},
      {with(text(), "compute_seconds 0.25 0.25", "compute_seconds 0.25 -1"), "'-1' is not a number from 0 to 86400"},
      {with(text(), "compute_seconds 0.25 0.25", "compute_seconds 0.25 0.25 1"), "'1' is one word too many"},
      {with(text(), "update_seconds 0.125 0.125\n", "exposed_seconds 0 0\nupdate_seconds 0.125 0.125\n"),
       "'exposed_seconds' cannot stand here; possible: update_seconds"},
      {with(text(), "loss 1 1 1\n", ""), "loss must be there for every rank and round"},
      {with(text(), "loss 1 1 1", "loss 1 inf 1"), "'inf' is not a number"},
      {with(text(), "step_seconds 1 1 1\n", "step_seconds 1 1\n"), "'0.125' is one word too many"},
      {with(text(), "end 2", "end 1"), "the text has 2 rounds"},
      {text() + "x\n", "there is text after the number of rounds"},
      {with(text(), "\n", "\r\n"), "mine.txt:1: is not a text of samples"},
      {"", "mine.txt:1: the text ends here"}};
  for (const auto& [text, expected] : cases) {
    const std::string said = refusal(text);
    EXPECT_NE(said.find(expected), std::string::npos) << said << "\nexpected: " << expected;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    EXPECT_LT(said.size(), 400U);
  }
}

TEST(SamplesText, RanksOfAPhaseHaveEquallyManySteps) {
  std::string shorter = kNone;
  shorter = with(shorter, "step_seconds 0.75\n", "step_seconds 0.75 0.75\n");
  for (const char* key : {"input_seconds 0.125\ncompute_seconds 0.5\n", "update_seconds 0.125\n"}) {
    const std::size_t at = shorter.rfind(key);
    ASSERT_NE(at, std::string::npos);
    shorter.replace(at, std::string(key).size(),
                    std::string(key) == "update_seconds 0.125\n" ? "update_seconds 0.125 0.125\n"
                                                                 : "input_seconds 0 0\ncompute_seconds 0.5 0.5\n");
  }
  EXPECT_NE(
      refusal(head() + "round 1\n" + kSolo + shorter + kFull + "end 1\n").find("rank 1 had 2 steps, and rank 0 had 1"),
      std::string::npos);
}

TEST(SamplesText, RefusesBeyondTheLimits) {
  std::string facts = head();
  for (int i = 0; i < 255; ++i) facts += "fact torch.f" + std::to_string(i) + " 0 x\n";
  EXPECT_NE(refusal(with(head() + "end 0\n", "fact torch.version",
                         facts.substr(facts.find("n2\n") + 3) + "fact torch.version"))
                .find("more than 256 facts"),
            std::string::npos);
  std::string steps = "round 1\nphase solo\nrank 0\nstep_seconds";
  for (int i = 0; i < 1'000'001; ++i) steps += " 1";
  EXPECT_NE(refusal(head() + steps + "\n").find("more than 1000000 steps"), std::string::npos);
}

TEST(SamplesText, EveryTruncationIsRefusedInOneLine) {
  const std::string all = text();
  for (std::size_t length = 0; length < all.size(); ++length) {
    const std::string said = refusal(all.substr(0, length));
    ASSERT_EQ(said.find("mine.txt:"), 0U) << length << ": " << said;
  }
}

// A changed byte or two may give another valid text. Whatever is accepted must be analysed without a fault.
TEST(SamplesText, DamagedTextsAreRefusedOrAnalysed) {
  const std::string all = text(), kBytes(
                                      "0123456789.e- \n\0\xff"
                                      "ax",
                                      19);
  std::size_t accepted = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::string damaged = all;
    const Philox draws(seed, 0);
    for (std::uint64_t i = 0; i < 1 + seed % 3; ++i) {
      const auto drawn = draws.block(i);
      damaged[drawn[0] % damaged.size()] = kBytes[drawn[1] % kBytes.size()];
    }
    try {
      SamplesText read = parse_samples(damaged, "mine.txt");
      const SessionResult result = analyse_samples(std::move(read), {}, "session");
      double sum = 0;
      for (const DecompositionRow& row : result.runs.back().decomposition) sum += row.fraction;
      ASSERT_NEAR(sum, 1, 1e-6) << seed;
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Errc::kInvalidArgument) << seed;
    }
  }
  EXPECT_GT(accepted, 100U);
  EXPECT_LT(accepted, 2900U);
}

TEST(Analysis, ThreeRunsOfOneSession) {
  const SessionResult result = analyse_samples(parse_samples(text(), "mine.txt"), {{"build.type", {"x", true}}}, "s1");
  ASSERT_EQ(result.runs.size(), 3U);
  const RunRecord &solo = result.runs[0], &none = result.runs[1], &full = result.runs[2];
  EXPECT_EQ(solo.comm + "/" + solo.schedule + "/" + solo.data_plane, "solo/none/none");
  EXPECT_EQ(none.comm + "/" + none.schedule + "/" + none.data_plane, "gloo/none/none");
  EXPECT_EQ(full.comm + "/" + full.schedule + "/" + full.data_plane, "gloo/ddp/gloo");
  EXPECT_EQ(solo.world_size, 1);
  EXPECT_EQ(solo.allocation_size, 2);
  EXPECT_EQ(solo.measured_steps, 4);
  EXPECT_EQ(none.measured_steps, 2);
  EXPECT_EQ(full.measured_steps, 6);
  EXPECT_DOUBLE_EQ(none.step_seconds->value, 0.75) << "the maximum over ranks";
  EXPECT_DOUBLE_EQ(full.images_per_second->value, 16);
  EXPECT_DOUBLE_EQ(*full.final_loss, 2);
  EXPECT_FALSE(none.final_loss);
  EXPECT_EQ(full.decomposition.size(), kComponents.size() - 1);  // all but control_plane
  EXPECT_EQ(full.decomposition[2].component, "input");
  EXPECT_DOUBLE_EQ(full.decomposition[2].fraction, 0.125);
  EXPECT_TRUE(full.ranks[0].samples.control.empty()) << "nobody measured it";
  EXPECT_FALSE(full.provenance.at("build.type").in_fingerprint) << "hvd_bench did not train";
  EXPECT_TRUE(full.provenance.at("work.unit").in_fingerprint);
  EXPECT_EQ(full.provenance.at("measurement.exposed_communication").value,
            "exposed communication per step: 250.00 ms by the ranks' own clocks");
}

}  // namespace
}  // namespace hvd::bench::samples_text_test
