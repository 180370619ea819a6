// The 95 % interval of the efficiency must contain the true value as often as decomposition.h says. Each case has 300
// seeded sessions. The noise of a step time has three factors: one for the whole round (which cancels in a ratio), one
// for the visit, and one for the step. The test allows the share of intervals that contain the true value to be lower
// than the share in decomposition.h by three standard errors of 300 sessions.
#include <gtest/gtest.h>

#include <cmath>

#include "bench/measure/decomposition.h"
#include "engine/base/philox.h"

namespace hvd::bench::efficiency_coverage_test {
namespace {

struct Case {
  std::size_t rounds, steps;  // number of rounds, and of steps in each visit
  double round_sd, visit_sd, step_sd;
  double promised;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.rounds << " rounds of " << c.steps << ", sd " << c.round_sd << ' ' << c.visit_sd << ' ' << c.step_sd;
}

class EfficiencyCoverage : public testing::TestWithParam<Case> {};

/// A simulated session. Its step times are skewed: most are near the fastest, some are much slower.
class Session {
 public:
  Session(const Case& c, std::uint64_t stream) : case_(c), noise_(20261121, stream) {}

  Round round() {
    const double shared = case_.round_sd * normal();
    Round out;
    for (std::vector<RankSamples>* phase : {&out.solo, &out.none, &out.full}) phase->push_back(visit(shared));
    return out;
  }

 private:
  double normal() { return static_cast<double>(noise_.normal(next_++)); }
  RankSamples visit(double shared) {
    const double own = case_.visit_sd * normal();
    RankSamples samples;
    for (std::size_t i = 0; i < case_.steps; ++i) {
      samples.step.push_back(std::exp(shared + own + case_.step_sd * std::abs(normal())));
    }
    samples.compute = samples.step;
    for (std::vector<double>* series :
         {&samples.exposed, &samples.reduce, &samples.control, &samples.copy, &samples.update, &samples.loss}) {
      series->assign(case_.steps, 0);
    }
    return samples;
  }

  const Case& case_;
  const Philox noise_;
  std::uint64_t next_ = 0;
};

TEST_P(EfficiencyCoverage, IsWhatTheHeaderPromises) {
  constexpr int kSessions = 300;
  const Case& c = GetParam();
  int covered = 0;
  for (std::uint64_t i = 0; i < kSessions; ++i) {
    Session session(c, i);
    std::vector<Round> rounds;
    while (rounds.size() < c.rounds) rounds.push_back(session.round());
    // Solo and full steps take equally long, so the true efficiency is 1.
    const Estimate efficiency = analyse_efficiency(rounds, {.resamples = 300, .seed = i}).efficiency;
    if (efficiency.low <= 1 && 1 <= efficiency.high) ++covered;
  }
  const double coverage = static_cast<double>(covered) / kSessions;
  RecordProperty("coverage_percent", static_cast<int>(std::lround(100 * coverage)));
  EXPECT_GE(coverage, c.promised - 3 * std::sqrt(c.promised * (1 - c.promised) / kSessions)) << coverage;
}

INSTANTIATE_TEST_SUITE_P(Rounds, EfficiencyCoverage,
                         testing::Values(Case{2, 3, 0, 0.02, 0.02, 0.85}, Case{3, 3, 0, 0.02, 0.02, 0.90},
                                         Case{4, 10, 0, 0.02, 0.02, 0.90}, Case{5, 3, 0, 0.02, 0.02, 0.93},
                                         Case{8, 3, 0.02, 0.01, 0.02, 0.93}, Case{8, 10, 0, 0.02, 0.02, 0.93},
                                         Case{5, 3, 0.03, 0, 0.02, 0.93}, Case{8, 3, 0, 0, 0.03, 0.93}));

}  // namespace
}  // namespace hvd::bench::efficiency_coverage_test
