#include <gtest/gtest.h>

#include <algorithm>

#include "bench/cli/report.h"
#include "bench/session/session.h"

namespace hvd::bench::validation_report_test {
namespace {

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
}  // namespace hvd::bench::validation_report_test
