// Runs `hvd_bench validate` as whole sessions on fake GPUs: N ranks as threads. One rank updates its weights wrongly.
#include <gtest/gtest.h>

#include "bench/world/training_options.h"
#include "tests/bench/session/gpu_sessions.h"

namespace hvd::bench::gpu_validation_test {
namespace {

using test::FakeGpus;
using Kind = ValidationFinding::Kind;

Options validation_options(int ranks) {
  Options options = test::gpu_options(ranks);
  // Only a rank that is 900 times slower than the others counts as slow. No pause of a busy machine makes a rank so
  // slow in every step.
  options.validate = ValidateOptions{.steps = 10, .threshold = 900};
  settle_validation(options);
  return options;
}

SessionResult validated(const Options& options, FakeGpus& gpus) {
  SessionResult result = test::good_run(options, gpus);
  EXPECT_TRUE(result.validation.has_value());
  return result;
}

TEST(GpuValidation, EqualGpusAreGood) {
  FakeGpus gpus(4);
  const SessionResult result = validated(validation_options(4), gpus);
  const Validation& outcome = *result.validation;
  EXPECT_TRUE(outcome.findings.empty());
  EXPECT_EQ(outcome.turns, 1) << "each rank has a GPU of its own";
  EXPECT_EQ(outcome.groups.size(), 1U);
  for (const ValidatedRank& rank : outcome.ranks) {
    EXPECT_EQ(rank.weights, outcome.ranks[0].weights);
    EXPECT_FALSE(rank.gpu.empty());
  }
  EXPECT_EQ(result.runs.at(0).measured_steps, 10);
  EXPECT_EQ(result.runs.at(0).provenance.at("gpu.option.deterministic").value, "yes");
}

TEST(GpuValidation, TheGpuWithAnotherUpdateIsNamed) {
  for (const int faulty : {0, 2}) {
    FakeGpus gpus(4);
    gpus.faults.drifts_on = faulty;
    const Validation outcome = *validated(validation_options(4), gpus).validation;
    ASSERT_EQ(outcome.findings.size(), 1U);
    const ValidationFinding& finding = outcome.findings[0];
    EXPECT_EQ(finding.kind, Kind::kDiffers);
    EXPECT_EQ(finding.ranks, (std::vector<int>{faulty}));
    EXPECT_NE(finding.text.find(outcome.ranks.at(static_cast<std::size_t>(faulty)).gpu), std::string::npos)
        << finding.text;
    EXPECT_NE(finding.text.find("first in the gradients of step 2: 5 of 5 tensors"), std::string::npos) << finding.text;
  }
}

TEST(GpuValidation, AllRunTheEnginesOfRankZeroOrAreNotEqual) {
  Options options = validation_options(3);
  options.gpu.tune = true;
  FakeGpus gpus(3);
  EXPECT_EQ(validated(options, gpus).validation->groups.size(), 1U);
  FakeGpus ignores_agreed_engines(3);
  ignores_agreed_engines.faults.ignores_agreed_engines = true;
  const Validation outcome = *validated(options, ignores_agreed_engines).validation;
  EXPECT_EQ(outcome.groups.size(), 3U);
  EXPECT_NE(outcome.groups.at(1).find("gpu.engines is "), std::string::npos) << outcome.groups.at(1);
  EXPECT_FALSE(outcome.ranks.at(1).time.has_value());
  EXPECT_EQ(outcome.exit_code(), 3) << "nothing was compared";
}

}  // namespace
}  // namespace hvd::bench::gpu_validation_test
