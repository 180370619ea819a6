// The intervals of the decomposition must contain the true values even on a host that other programs use. Seeded
// sessions of two ranks run on a simulated machine. The whole host has slow spells that last from several steps to
// several rounds, single cores have slow spells, and step times have heavy tails. The true values are those of a quiet
// machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "bench/measure/decomposition.h"
#include "bench/store/run_record.h"
#include "engine/base/philox.h"

namespace hvd::bench::disturbed_host_test {
namespace {

constexpr std::size_t kRanks = 2;

/// The parts of one step on a quiet machine, in units of the solo step.
struct Parts {
  double interference = 0, overlap = 0, communication = 0, update = 0;
  [[nodiscard]] double full() const { return 1 + interference + overlap + communication + update; }
};

struct Case {
  const char* name;
  std::size_t rounds, steps;  ///< number of rounds, and of steps in each visit
  Parts parts;
  double host_share;  ///< share of the time in spells that slow all cores
  double core_share;  ///< share of the time in spells that slow one core
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// Random intervals of time in which the host or a core runs slower.
class Spells {
 public:
  Spells(const Philox& noise, std::uint64_t& next, double share, double shortest, double longest) {
    if (share <= 0) return;
    const double mean = (longest - shortest) / std::log(longest / shortest);  // mean of log-uniform lengths
    for (double t = 0; t < kHorizon;) {
      t += -std::log(noise.uniform(next++)) * mean * (1 - share) / share;
      const double length = shortest * std::pow(longest / shortest, noise.uniform(next++));
      // The slowdown has a Pareto distribution, so some spells make steps several times as long as on a quiet machine.
      const double slower = 1 + 0.15 * std::pow(noise.uniform(next++), -0.6);
      spells_.push_back({t, t + length, std::min(slower, 4.0)});
      t += length;
    }
  }
  [[nodiscard]] double factor(double t) const {
    for (const Spell& spell : spells_) {
      if (spell.begin <= t && t < spell.end) return spell.factor;
    }
    return 1;
  }

 private:
  static constexpr double kHorizon = 1000;
  struct Spell {
    double begin, end, factor;
  };
  std::vector<Spell> spells_;
};

class Session {
 public:
  Session(const Case& c, std::uint64_t stream)
      : case_(c),
        noise_(20261123, stream),
        host_(noise_, next_, c.host_share, 3, 9.0 * static_cast<double>(c.steps)),
        cores_{Spells(noise_, next_, c.core_share, 1, 5), Spells(noise_, next_, c.core_share, 1, 5)} {}

  std::vector<Round> rounds() {
    std::vector<Round> out(case_.rounds);
    for (Round& round : out) {
      std::array<Phase, 3> order{Phase::kSolo, Phase::kNone, Phase::kFull};
      for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[static_cast<std::size_t>(uniform() * static_cast<double>(i)) % i]);
      }
      for (const Phase phase : order) {
        if (phase == Phase::kSolo) round.solo = visit(phase, 1);
        if (phase == Phase::kNone) round.none = visit(phase, kRanks);
        if (phase == Phase::kFull) round.full = visit(phase, kRanks);
      }
    }
    return out;
  }

 private:
  double uniform() { return static_cast<double>(noise_.uniform(next_++)); }

  std::vector<RankSamples> visit(Phase phase, std::size_t ranks) {
    std::vector<RankSamples> out(ranks);
    for (std::size_t i = 0; i < case_.steps; ++i) step(phase, out);
    return out;
  }

  void step(Phase phase, std::vector<RankSamples>& ranks) {
    const Parts& parts = case_.parts;
    // Spells of the whole host, small noise in every step, and pauses in 5 % of the steps slow both cores alike.
    const double common = host_.factor(now_) * std::exp(0.01 * std::abs(static_cast<double>(noise_.normal(next_++))) +
                                                        (uniform() < 0.05 ? -0.2 * std::log(uniform()) : 0));
    double work = 1 - kUpdate;
    if (phase != Phase::kSolo) work += parts.interference;
    if (phase == Phase::kFull) work += parts.overlap;
    std::array<double, kRanks> compute{};
    for (std::size_t r = 0; r < ranks.size(); ++r) compute[r] = work * common * cores_[r].factor(now_);
    const double slowest =
        *std::max_element(compute.begin(), compute.begin() + static_cast<std::ptrdiff_t>(ranks.size()));
    const double update = common * (kUpdate + (phase == Phase::kFull ? parts.update : 0));
    double longest = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const double wait = phase == Phase::kFull ? slowest - compute[r] + common * parts.communication : 0;
      ranks[r].step.push_back(compute[r] + wait + update);
      ranks[r].compute.push_back(compute[r]);
      ranks[r].exposed.push_back(wait);
      ranks[r].update.push_back(update);
      for (std::vector<double>* none : {&ranks[r].reduce, &ranks[r].control, &ranks[r].copy, &ranks[r].loss}) {
        none->push_back(0);
      }
      longest = std::max(longest, ranks[r].step.back());
    }
    now_ += longest;
  }

  static constexpr double kUpdate = 0.02;
  const Case& case_;
  const Philox noise_;
  std::uint64_t next_ = 0;
  Spells host_;
  std::array<Spells, kRanks> cores_;
  double now_ = 0;
};

std::map<std::string, double> truth_of(const Parts& parts) {
  const double full = parts.full();
  return {{"efficiency", 1 / full},
          {"interference", parts.interference / full},
          {"stragglers", 0},
          {"exposed_communication", parts.communication / full},
          {"control_plane", 0},
          {"overlap_slowdown", parts.overlap / full},
          {"update", parts.update / full},
          {"residual", 0}};
}

class DisturbedHost : public testing::TestWithParam<Case> {};

TEST_P(DisturbedHost, IntervalsHoldTheTruthAndFiguresAreNearIt) {
  constexpr int kSessions = 300;
  constexpr double kClaim = 0.93;
  constexpr double kTypicalError = 0.015;  // limit of the root mean square error, as a share of the step
  constexpr double kRounding = 1e-12;
  const Case& c = GetParam();
  std::map<std::string, int> covered;
  std::map<std::string, double> square;
  for (std::uint64_t i = 0; i < kSessions; ++i) {
    const EfficiencyAnalysis analysis = analyse_efficiency(Session(c, i).rounds(), {.resamples = 200, .seed = i});
    for (const DecompositionRow& row : analysis.rows) {
      const double exact = truth_of(c.parts).at(row.component);
      if (*row.low <= exact + kRounding && exact - kRounding <= *row.high) ++covered[row.component];
      square[row.component] += (row.fraction - exact) * (row.fraction - exact);
    }
  }
  for (const auto& [component, exact] : truth_of(c.parts)) {
    const double coverage = static_cast<double>(covered[component]) / kSessions;
    const double error = std::sqrt(square[component] / kSessions);
    const double claim = exact == 0 ? 0.95 : kClaim;  // 95 % of the intervals must contain 0 if the part is 0
    EXPECT_GE(coverage, claim - 3 * std::sqrt(claim * (1 - claim) / kSessions)) << component << " of " << exact;
    EXPECT_LE(error, kTypicalError) << component << " of " << exact;
    RecordProperty("covered_percent_" + component, static_cast<int>(std::lround(100 * coverage)));
    RecordProperty("error_per_mille_" + component, static_cast<int>(std::lround(1000 * error)));
  }
}

constexpr Parts kParts{.interference = 0.03, .overlap = 0.04, .communication = 0.05, .update = 0.01};
constexpr Parts kNothing{};

INSTANTIATE_TEST_SUITE_P(Hosts, DisturbedHost,
                         testing::Values(Case{"a quiet host", 12, 2, kParts, 0, 0},
                                         Case{"slow spells of the host", 12, 1, kParts, 0.3, 0},
                                         Case{"slow spells of a core", 15, 1, kParts, 0.1, 0.1},
                                         Case{"slow spells of both", 20, 1, kParts, 0.3, 0.1},
                                         Case{"slow spells where nothing is lost", 20, 1, kNothing, 0.3, 0.05},
                                         Case{"the same in long visits", 20, 3, kNothing, 0.3, 0.05}));

}  // namespace
}  // namespace hvd::bench::disturbed_host_test
