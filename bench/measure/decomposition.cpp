#include "bench/measure/decomposition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "bench/measure/resample.h"
#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

// The series that the rows are medians of, one element per step.
struct PhaseSeries {
  std::vector<std::vector<double>> step, compute, update;  // [rank][step]
  std::vector<double> slowest;                             // maximum step over ranks
  std::vector<double> wait, control;                       // shortest wait over ranks, and its control part
};

struct Components {
  double solo = 0, interference = 0, stragglers = 0, exposed = 0, control = 0, overlap = 0, update = 0, residual = 0;
  double full = 0;
  double against_independent = 0;
};

using PhaseOf = std::vector<RankSamples> Round::*;

double mean_of_medians(const std::vector<std::vector<double>>& ranks) {
  double sum = 0;
  for (const std::vector<double>& rank : ranks) sum += median(rank);
  return sum / static_cast<double>(ranks.size());
}

double control_share(const RankSamples& rank, std::size_t step) {
  const double engine = rank.control[step] + rank.reduce[step] + rank.copy[step];
  return engine > 0 ? rank.control[step] / engine : 0;
}

// Appends the steps `picked` of one round's phase.
void append(PhaseSeries& series, const std::vector<RankSamples>& ranks, std::span<const std::size_t> picked) {
  series.step.resize(ranks.size());
  series.compute.resize(ranks.size());
  series.update.resize(ranks.size());
  for (const std::size_t step : picked) {
    std::size_t last = 0;  // the rank that waited least arrived last
    double slowest = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      series.step[r].push_back(ranks[r].step[step]);
      series.compute[r].push_back(ranks[r].compute[step]);
      series.update[r].push_back(ranks[r].update[step]);
      slowest = std::max(slowest, ranks[r].step[step]);
      if (ranks[r].exposed[step] < ranks[last].exposed[step]) last = r;
    }
    series.slowest.push_back(slowest);
    series.wait.push_back(ranks[last].exposed[step]);
    series.control.push_back(ranks[last].exposed[step] * control_share(ranks[last], step));
  }
}

// Which rounds, and which steps of each phase of a round, make up one (re)sample.
using PickRounds = std::function<std::vector<std::size_t>(std::size_t rounds)>;
using PickSteps = std::function<std::vector<std::size_t>(std::size_t steps)>;

PhaseSeries collect(std::span<const Round> rounds, const std::vector<std::size_t>& which, PhaseOf phase,
                    const PickSteps& pick) {
  PhaseSeries series;
  for (const std::size_t r : which) {
    const std::vector<RankSamples>& ranks = rounds[r].*phase;
    append(series, ranks, pick(ranks.at(0).step.size()));
  }
  return series;
}

Components components(std::span<const Round> rounds, const PickRounds& pick_rounds, const PickSteps& pick) {
  const std::vector<std::size_t> which = pick_rounds(rounds.size());
  const PhaseSeries solo = collect(rounds, which, &Round::solo, pick);
  const PhaseSeries none = collect(rounds, which, &Round::none, pick);
  const PhaseSeries full = collect(rounds, which, &Round::full, pick);

  Components c;
  c.solo = median(solo.slowest);
  c.full = median(full.slowest);
  const double none_mean = mean_of_medians(none.step);
  c.interference = none_mean - c.solo;
  c.stragglers = median(none.slowest) - none_mean;
  c.control = median(full.control);
  c.exposed = median(full.wait) - c.control;
  c.overlap = mean_of_medians(full.compute) - mean_of_medians(none.compute);
  c.update = mean_of_medians(full.update) - mean_of_medians(none.update);
  c.residual = c.full - (c.solo + c.interference + c.stragglers + c.exposed + c.control + c.overlap + c.update);

  double independent_rate = 0;
  for (const std::vector<double>& rank : none.step) independent_rate += 1 / median(rank);
  c.against_independent = static_cast<double>(none.step.size()) / c.full / independent_rate;
  return c;
}

constexpr std::array<std::pair<const char*, double Components::*>, 8> kRows{{
    {"efficiency", &Components::solo},
    {"interference", &Components::interference},
    {"stragglers", &Components::stragglers},
    {"exposed_communication", &Components::exposed},
    {"control_plane", &Components::control},
    {"overlap_slowdown", &Components::overlap},
    {"update", &Components::update},
    {"residual", &Components::residual},
}};

std::vector<std::size_t> all_of(std::size_t n) {
  std::vector<std::size_t> all(n);
  for (std::size_t i = 0; i < n; ++i) all[i] = i;
  return all;
}

std::vector<std::size_t> draw_steps(std::size_t n, double rho, Draws& draws) {
  const std::size_t length = block_length(n, rho);
  const std::vector<std::size_t> starts = block_starts(n, length, draws);
  std::vector<std::size_t> picked(n);
  for (std::size_t i = 0; i < n; ++i) picked[i] = (starts[i / length] + i % length) % n;
  return picked;
}

double correlation_of_full(std::span<const Round> rounds) {
  std::vector<double> step;
  for (const Round& round : rounds) {
    std::vector<std::vector<double>> ranks;
    for (const RankSamples& rank : round.full) ranks.push_back(rank.step);
    const std::vector<double> slowest = max_over_ranks(ranks);
    step.insert(step.end(), slowest.begin(), slowest.end());
  }
  return lag_one_autocorrelation(step);
}

bool enough_for_intervals(std::span<const Round> rounds) {
  std::size_t samples = 0;
  for (const Round& round : rounds) samples += round.full.at(0).step.size();
  return rounds.size() >= 2 && samples >= kFewestForInterval;
}

EfficiencyAnalysis without_intervals(const Components& measured) {
  EfficiencyAnalysis out;
  for (const auto& [component, member] : kRows) {
    out.rows.push_back({component, measured.*member / measured.full, measured.*member, std::nullopt, std::nullopt});
  }
  out.efficiency = {out.rows[0].fraction, kNoInterval, kNoInterval};
  out.against_independent = {measured.against_independent, kNoInterval, kNoInterval};
  return out;
}

}  // namespace

EfficiencyAnalysis analyse_efficiency(std::span<const Round> rounds, const IntervalOptions& options) {
  HVD_ASSERT(!rounds.empty());
  const Components measured = components(rounds, all_of, all_of);
  if (!enough_for_intervals(rounds)) return without_intervals(measured);

  Draws draws(options.seed, 1);
  const double rho = correlation_of_full(rounds);
  const auto pick_rounds = [&](std::size_t n) { return block_starts(n, 1, draws); };
  const auto pick_steps = [&](std::size_t n) { return draw_steps(n, rho, draws); };
  std::array<std::vector<double>, kRows.size()> fractions;
  std::vector<double> independent;
  for (std::size_t i = 0; i < options.resamples; ++i) {
    const Components c = components(rounds, pick_rounds, pick_steps);
    for (std::size_t row = 0; row < kRows.size(); ++row) fractions[row].push_back(c.*kRows[row].second / c.full);
    independent.push_back(c.against_independent);
  }

  EfficiencyAnalysis out = without_intervals(measured);
  const auto count = static_cast<double>(rounds.size());
  const double wider = std::sqrt(count / (count - 1));
  const auto widened = [&](double value, std::vector<double>& resampled) {
    const auto [low, high] = percentile_interval(resampled, options.confidence);
    const double floor = low >= 0 ? 0 : -HUGE_VAL;  // a wait is never negative
    return Estimate{value, std::max(floor, value + std::min(0.0, low - value) * wider),
                    value + std::max(0.0, high - value) * wider};
  };
  for (std::size_t row = 0; row < kRows.size(); ++row) {
    const Estimate fraction = widened(out.rows[row].fraction, fractions[row]);
    out.rows[row].low = fraction.low;
    out.rows[row].high = fraction.high;
  }
  out.efficiency = {out.rows[0].fraction, *out.rows[0].low, *out.rows[0].high};
  out.against_independent = widened(measured.against_independent, independent);
  return out;
}

}  // namespace hvd::bench
