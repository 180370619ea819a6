// Tests the output for a person (the closing table) and for a program (the JSON document).
#include "bench/cli/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "bench/cli/console.h"
#include "bench/measure/units.h"
#include "bench/session/session.h"

namespace hvd::bench::report_test {
namespace {

RunRecord run_of(Phase phase, int ranks, double rate) {
  RunRecord run;
  run.uuid = phase == Phase::kFull ? "u-full" : "u-solo";
  run.session_uuid = "s";
  run.phase = phase;
  run.status = RunStatus::kComplete;
  run.model = "vgg16";
  run.batch_size = 8;
  run.image_size = 224;
  run.world_size = ranks;
  run.allocation_size = 2;
  run.threads = 1;
  run.measured_steps = 12;
  run.flops_per_image = 1e10;
  run.images_per_second = Estimate{rate, 0.99 * rate, 1.01 * rate};
  run.step_seconds = Estimate{8 * ranks / rate, 0, 0};
  run.ranks.resize(static_cast<std::size_t>(ranks));
  return run;
}

SessionResult two_phases() {
  SessionResult result;
  result.runs = {run_of(Phase::kSolo, 1, 2.5), run_of(Phase::kFull, 2, 4.8)};
  RunRecord& full = result.runs.back();
  full.decomposition = {{"efficiency", 0.96, 3.2, 0.95, 0.97},
                        {"exposed_communication", 0.05, 0.1666, std::nullopt, std::nullopt},
                        {"residual", -0.01, -0.0333, std::nullopt, std::nullopt}};
  full.ranks[1].rank = 1;
  full.ranks[1].peak_bytes = 125 << 20;
  full.checks = "gradients ok";
  full.final_loss = 6.9;
  full.provenance["odd"] = {"tab\tquote\"backslash\\ and \xc3\xa9", true};
  result.notes = {"a note"};
  return result;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Report, ClosingTable) {
  const std::string text = closing_text(two_phases(), {"/data/x.db", ""});
  EXPECT_TRUE(
      contains(text, "4.80 images/s of 5.00 (2 x one rank alone): efficiency 96.0 % [95.0, 97.0], round by round"))
      << text;
  EXPECT_FALSE(contains(text, "fewer than")) << "twelve steps are enough";
  EXPECT_TRUE(contains(text, "2.48 .. 2.52") || contains(text, "2.48 .. 2.53")) << text;
  EXPECT_TRUE(contains(text, "3333.33")) << "a step of 16 images at 4.8 images/s";
  EXPECT_TRUE(contains(text, "exposed communication")) << text;
  EXPECT_TRUE(contains(text, "sum                         100.0 %")) << text;
  EXPECT_TRUE(contains(text, "checks      gradients ok"));
  EXPECT_TRUE(contains(text, "note        a note"));
  EXPECT_TRUE(contains(text, "stored      /data/x.db"));
  EXPECT_TRUE(contains(text, "u-full"));
  EXPECT_FALSE(contains(text, "total images/sec")) << "main prints that line, once";
  EXPECT_TRUE(contains(closing_text(two_phases(), {"x", "disk full"}), "not stored  disk full"));
}

TEST(Report, APartWhoseIntervalHoldsZeroHasNoBar) {
  SessionResult result = two_phases();
  EXPECT_FALSE(contains(closing_text(result, {}), "ms  not resolved"));
  result.runs[1].decomposition[1].low = -0.04;
  result.runs[1].decomposition[1].high = 0.14;
  const std::string text = closing_text(result, {});
  EXPECT_TRUE(contains(text, "   -4.0 ..  14.0 %    166.60 ms  not resolved\n")) << text;
  EXPECT_TRUE(contains(text, "  not resolved: the interval holds 0")) << text;
  result.runs[1].decomposition[1].low = 0.01;
  EXPECT_TRUE(contains(closing_text(result, {}), "166.60 ms  ##\n")) << closing_text(result, {});
}

TEST(Report, OneLineSaysWhatLosesMost) {
  SessionResult result = two_phases();
  std::vector<DecompositionRow>& rows = result.runs[1].decomposition;
  rows = {{"efficiency", 0.9, 3.0, 0.89, 0.91},
          {"interference", 0.06, 0.2, -0.01, 0.13},
          {"stragglers", 0.013, 0.04, 0.005, 0.021},
          {"exposed_communication", 0.01, 0.03, 0.009, 0.011}};
  EXPECT_TRUE(
      contains(closing_text(result, {"/data/x.db", ""}),
               "\nloses most  waiting for stragglers, 1.3 % [0.5, 2.1]; what to try: scripts/report /data/x.db, "
               "or docs/report.md#what-to-try-next\n"));
  EXPECT_TRUE(contains(closing_text(result, {}), "; what to try: docs/report.md#what-to-try-next\n"));
  for (DecompositionRow& row : rows) row.low = -0.01;
  EXPECT_TRUE(contains(closing_text(result, {}), "\nloses most  not resolved: ")) << closing_text(result, {});
  rows.clear();
  EXPECT_FALSE(contains(closing_text(result, {}), "loses most"));
}

TEST(Report, ExplanationsComeWithVerboseOnlyAndInJson) {
  SessionResult result = two_phases();
  result.runs.back().provenance["measurement.memory"] = {"memory per rank: peak", false};
  result.runs.back().provenance["measurement.first_steps"] = {"kept", false};
  EXPECT_FALSE(contains(closing_text(result, {}), "memory per rank"));
  EXPECT_TRUE(contains(closing_text(result, {}, true),
                       "note        memory per rank: peak\nnote        first step after a change of phase: kept\n"));
  EXPECT_TRUE(contains(closing_text(result, {}, true), "note        a note\n"));
  const std::string json = json_report(result, {});
  EXPECT_TRUE(contains(json.substr(json.find("\"notes\""), 200), "memory per rank: peak")) << json;
}

TEST(Report, FewSamplesAreCalledFew) {
  SessionResult result = two_phases();
  result.runs[1].measured_steps = 2;
  result.runs[1].images_per_second = Estimate{4.8, kNoInterval, kNoInterval};
  result.runs[1].decomposition[0].low = result.runs[1].decomposition[0].high = std::nullopt;
  const std::string text = closing_text(result, {});
  EXPECT_TRUE(contains(text, "  2 *\n* fewer than 10 samples")) << text;
  EXPECT_TRUE(contains(text, "efficiency not resolved: too few rounds for an interval\n")) << text;
  EXPECT_FALSE(contains(text, "96.0 %")) << "no efficiency without an interval" << text;
  EXPECT_FALSE(contains(text, "nan")) << text;
  result.runs[1].batches_per_iter = 10;
  result.runs[1].measured_steps = 90;
  EXPECT_TRUE(contains(closing_text(result, {}), " 90 *")) << "nine samples of ten steps";
}

TEST(Report, AWideEfficiencyIsNotResolved) {
  SessionResult result = two_phases();
  result.runs[1].decomposition[0].low = 0.464;
  result.runs[1].decomposition[0].high = 1.014;
  const std::string text = closing_text(result, {});
  EXPECT_TRUE(contains(text, "one rank alone): efficiency not resolved: between 46 and 101 %\n")) << text;
  EXPECT_TRUE(contains(text, "\n  efficiency                 not resolved: between 46 and 101 %\n")) << text;
  EXPECT_FALSE(contains(text, "96.0 %")) << text;
  EXPECT_TRUE(contains(json_report(result, {}), R"("efficiency": "not resolved: between 46 and 101 %")"));
}

TEST(Report, PhasesOfOneRankAreToldApart) {
  SessionResult result = two_phases();
  result.runs.insert(result.runs.begin() + 1, run_of(Phase::kNone, 1, 2.4));
  for (RunRecord& run : result.runs) run.allocation_size = 1;
  const std::string text = closing_text(result, {});
  for (const char* row : {"\none rank, baseline ", "\none rank, engine off ", "\none rank  "}) {
    EXPECT_TRUE(contains(text, row)) << row << text;
  }
}

TEST(Report, World) {
  RunRecord run = run_of(Phase::kFull, 2, 4.8);
  run.nodes = 2;
  run.comm = "mpi";
  run.data_plane = "ring";
  run.allreduce_type = "fp32";
  const Options options;
  const std::string text = world_text(options, run);
  EXPECT_TRUE(contains(text, "2 ranks, 2 hosts, 1 compute thread per rank")) << text;
  EXPECT_TRUE(contains(text, "static schedule over mpi (ring)")) << text;
}

TEST(Report, ARunWithoutSamples) {
  SessionResult result;
  result.runs = {run_of(Phase::kFull, 1, 1)};
  result.runs[0].images_per_second.reset();
  EXPECT_TRUE(contains(closing_text(result, {}), "not measured"));
}

TEST(Report, SmallTexts) {
  RunRecord run;
  run.images_per_second = Estimate{1234.564, 1200, 1300};
  EXPECT_EQ(total_line(run), "total images/sec: 1234.56");
  run.unit = "tokens";
  EXPECT_EQ(total_line(run), "total tokens/sec: 1234.56");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1.5 * 1024 * 1024), "1.50 MiB");
  EXPECT_EQ(bytes_text(178.2e6), "170 MiB");
  EXPECT_EQ(duration_text(45.4), "45 s");
  EXPECT_EQ(duration_text(190), "3 min");
  EXPECT_EQ(duration_text(7800), "2 h 10 min");
  Progress progress{"measuring", "full", 12, 4.96, 0.012, 40, "images"};
  EXPECT_EQ(progress_text(progress), "measuring full: step 12, 4.96 images/s +- 1.2 %, about 40 s left");
  progress = {"building", "full", 0, 0, 0, -1};
  EXPECT_EQ(progress_text(progress), "building full");
}

TEST(Printable, ControlCharactersAreEscapes) {
  EXPECT_EQ(printable("caf\u00e9 \U0001f600 a\\b"), "caf\u00e9 \U0001f600 a\\b");
  EXPECT_EQ(printable("\x1b[2J\r\n\t\x7f"), "\\x1b[2J\\x0d\\n\\t\\u007f");
  EXPECT_EQ(printable("\u009b\u202e\u200b\ufeff"), "\\u009b\\u202e\\u200b\\ufeff");
  EXPECT_EQ(printable("\x9b\xff"), "\ufffd\ufffd") << "not UTF-8";
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Report, StoredTextIsOneLineOfEach) {
  SessionResult result = two_phases();
  result.notes = {"of a replay named \x1b[2J\nstored      /etc/passwd"};
  const std::string text = closing_text(result, {"/tmp/a\nb.db", {}});
  EXPECT_TRUE(contains(text, "note        of a replay named \\x1b[2J\\nstored      /etc/passwd\n")) << text;
  EXPECT_TRUE(contains(text, "stored      /tmp/a\\nb.db\n")) << text;
}

TEST(Report, Plan) {
  Options options;
  options.num_iters = 3;
  options.num_warmup_batches = 1;
  options.db_file.clear();
  struct Setup setup;  // `struct`, because testing::Test::Setup hides the name
  setup.model = {"vgg16", 2, 32, 10, false};
  const std::string text = plan_text(options, setup);
  EXPECT_TRUE(contains(text, "vgg16, batch 2 per rank, images 32 x 32, fp32 on cpu")) << text;
  EXPECT_TRUE(contains(text, "3 samples of 1 step, after 1 step of warm-up, at most 5 min")) << text;
  EXPECT_TRUE(contains(text, "nothing (--no-db)"));
  EXPECT_FALSE(contains(text, "until then"));
  EXPECT_TRUE(contains(plan_text(options, setup, "/data/x.db.1.partial"), "  until then /data/x.db.1.partial\n"));
}

TEST(Json, PythonReadsIt) {
  SessionResult result = two_phases();
  result.runs.back().final_loss = std::numeric_limits<double>::quiet_NaN();
  const std::string file =
      std::filesystem::temp_directory_path() / ("hvd_report_" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << json_report(result, {"/data/x.db", ""});
  const std::string program =
      "import json, sys\n"
      "def refuse(text): raise ValueError(text)\n"
      "d = json.load(open(sys.argv[1]), parse_constant=refuse)\n"
      "full = d['runs'][1]\n"
      "assert d['total_images_per_second'] == 4.8 and d['db'] == '/data/x.db' and d['db_problem'] is None\n"
      "assert full['final_loss'] is None and full['phase'] == 'full' and full['status'] == 'complete'\n"
      "assert full['images_per_second_low'] < 4.8 < full['images_per_second_high']\n"
      "assert [r['component'] for r in full['decomposition']][0] == 'efficiency'\n"
      "assert full['decomposition'][1]['low'] is None and full['ranks'][1]['peak_bytes'] == 125 << 20\n"
      "assert full['provenance']['odd'] == 'tab\\tquote\"backslash\\\\ and \\u00e9'\n"
      "assert d['notes'] == ['a note'] and d['runs'][0]['operations'] == []\n";
  const std::string script = file + ".py";
  std::ofstream(script) << program;
  EXPECT_EQ(std::system(("/usr/bin/python3 " + script + " " + file).c_str()), 0);
  std::filesystem::remove(file);
  std::filesystem::remove(script);
}

TEST(Json, IsAllThatStandardOutputGetsWhateverLibrariesPrint) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::printf("before\n");
  {
    Console console({.results_only = true});
    std::printf("NCCL INFO Using network IB\n");
    console.print("{}\n");
    std::printf("NCCL INFO later\n");
  }
  std::printf("after\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "before\n{}\nafter\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "NCCL INFO Using network IB\nNCCL INFO later\n");
}

TEST(Json, NothingMeasured) { EXPECT_TRUE(contains(json_report({}, {}), "\"total_images_per_second\": null")); }

using Kind = ValidationFinding::Kind;

Validation validation(std::size_t ranks) {
  Validation outcome;
  outcome.steps = 32;
  outcome.timed_steps = 30;
  outcome.threshold = 0.02;
  outcome.groups = {"a processor"};
  for (std::size_t r = 0; r < ranks; ++r) {
    ValidatedRank rank;
    rank.host = "n" + std::to_string(r);
    rank.seconds = 0.1;
    rank.time.emplace().slower = 0.001 * static_cast<double>(r);
    rank.time->high = 0.01;
    rank.gradients = "00000000000000aa";
    rank.weights = "00000000000000bb";
    outcome.ranks.push_back(rank);
  }
  return outcome;
}

TEST(ValidationReport, SaysThatAllIsGood) {
  const std::string text = validation_text(validation(4));
  EXPECT_NE(text.find("good        equal bits on equal ranks in 32 steps"), std::string::npos) << text;
  EXPECT_NE(text.find("group 0     4 equal ranks: a processor"), std::string::npos) << text;
  EXPECT_LT(text.find("n3"), text.find("n2")) << "the slowest first";
}

TEST(ValidationReport, SaysHowFarItCanTell) {
  Validation outcome = validation(4);
  outcome.ranks[1].time->high = 0.031;
  const std::string text = validation_text(outcome);
  EXPECT_NE(text.find("no rank is slow as far as can be told: intervals reach up to 3.1 %"), std::string::npos) << text;
}

TEST(ValidationReport, OfManyRanksTheSlowestAreShown) {
  const std::string text = validation_text(validation(20));
  EXPECT_NE(text.find("and 4 more that are faster"), std::string::npos) << text;
  EXPECT_NE(text.find(" n4\n"), std::string::npos);
  EXPECT_EQ(text.find(" n3\n"), std::string::npos);
}

TEST(ValidationReport, FindingsAreLinesAndTextOfOthersIsMadePrintable) {
  Validation outcome = validation(4);
  outcome.ranks[0].host = "a\x1b[2J";
  outcome.findings.push_back({Kind::kDiffers, {0}, "rank 0 (host a\x1b[2J) differs"});
  const std::string text = validation_text(outcome);
  EXPECT_NE(text.find("FOUND       rank 0 (host a\\x1b[2J) differs\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("good  "), std::string::npos);
}

TEST(ValidationReport, ExitCodes) {
  Validation outcome = validation(2);
  EXPECT_EQ(outcome.exit_code(), 0);
  outcome.findings.push_back({Kind::kUnclear, {0}, ""});
  EXPECT_EQ(outcome.exit_code(), 3);
  for (const Kind certain : {Kind::kDiffers, Kind::kDisagree, Kind::kSlow}) {
    Validation worse = outcome;
    worse.findings.push_back({certain, {1}, ""});
    EXPECT_EQ(worse.exit_code(), 1);
  }
}

TEST(ValidationReport, TheClosingTextIsOfTheValidationAndJsonHoldsIt) {
  SessionResult result;
  result.runs.emplace_back();
  result.validation = validation(2);
  result.validation->ranks[1].time.reset();
  result.validation->findings.push_back({Kind::kDisagree, {0, 1}, "they differ"});
  const std::string text = closing_text(result, {});
  EXPECT_NE(text.find("FOUND       they differ"), std::string::npos) << text;
  EXPECT_EQ(text.find("images/s"), std::string::npos) << text;
  const std::string json = json_report(result, {});
  EXPECT_NE(json.find("\"kind\": \"disagree\",\n"), std::string::npos) << json;
  EXPECT_NE(json.find("\"slower_high\": null"), std::string::npos) << json;
  EXPECT_NE(json.find("\"weights\": \"00000000000000bb\""), std::string::npos) << json;
  result.validation.reset();
  EXPECT_EQ(json_report(result, {}).find("\"validation\""), std::string::npos);
}

}  // namespace

}  // namespace hvd::bench::report_test
