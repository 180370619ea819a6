#include "bench/measure/decomposition.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "bench/measure/resample.h"
#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

enum Row : std::size_t {
  kEfficiency,
  kInterference,
  kInput,
  kStragglers,
  kExposed,
  kControl,
  kOverlap,
  kUpdate,
  kResidual,
  kRows
};

static_assert(kComponents.size() == kRows);

// The parts of a step of phase full as fractions that sum to 1, for one round or for the geometric median of rounds.
struct Shares {
  std::array<double, kRows> rows{};
  double against_independent = 0;
};

using Series = std::vector<double> RankSamples::*;

double mean_of_medians(const std::vector<RankSamples>& ranks, Series series) {
  double sum = 0;
  for (const RankSamples& rank : ranks) sum += median(rank.*series);
  return sum / static_cast<double>(ranks.size());
}

// Returns the ranks with the steps of a rank that never waits for its batch.
std::vector<RankSamples> fed(const std::vector<RankSamples>& ranks) {
  std::vector<RankSamples> out;
  for (const RankSamples& rank : ranks) {
    RankSamples& steps = out.emplace_back();
    steps.step = rank.step;
    for (std::size_t i = 0; i < rank.input.size(); ++i) steps.step[i] -= rank.input[i];
  }
  return out;
}

// Returns the median over the steps of the mean time over ranks in which a step waits for its batch.
double input_of(const std::vector<RankSamples>& ranks) {
  std::vector<std::vector<double>> waits;
  for (const RankSamples& rank : ranks) {
    if (rank.input.empty()) return 0;
    waits.push_back(rank.input);
  }
  return median(mean_over_ranks(waits));
}

bool waits_for_input(std::span<const Round> rounds) {
  const auto waits = [](const RankSamples& rank) {
    return std::any_of(rank.input.begin(), rank.input.end(), [](double seconds) { return seconds > 0; });
  };
  return std::any_of(rounds.begin(), rounds.end(),
                     [&](const Round& round) { return std::any_of(round.full.begin(), round.full.end(), waits); });
}

// Returns the time of each step of all ranks together.
std::vector<double> step_times(const std::vector<RankSamples>& ranks, bool coupled) {
  std::vector<std::vector<double>> steps;
  steps.reserve(ranks.size());
  for (const RankSamples& rank : ranks) steps.push_back(rank.step);
  return coupled ? mean_over_ranks(steps) : max_over_ranks(steps);
}

double control_share(const RankSamples& rank, std::size_t step) {
  const double engine = rank.control[step] + rank.reduce[step] + rank.copy[step];
  return engine > 0 ? rank.control[step] / engine : 0;
}

struct Waits {
  double stragglers = 0, exposed = 0, control = 0;
};

// In each step the rank with the shortest wait arrived last, so this rank waited only for communication. The other
// ranks waited for this last rank and for communication.
Waits waits_of(const std::vector<RankSamples>& ranks) {
  std::vector<double> stragglers, shortest, control;
  for (std::size_t step = 0; step < ranks.at(0).step.size(); ++step) {
    const auto less = [step](const RankSamples& a, const RankSamples& b) { return a.exposed[step] < b.exposed[step]; };
    const RankSamples& last = *std::min_element(ranks.begin(), ranks.end(), less);
    double longer = 0;
    for (const RankSamples& rank : ranks) longer += rank.exposed[step] - last.exposed[step];
    stragglers.push_back(longer / static_cast<double>(ranks.size()));
    shortest.push_back(last.exposed[step]);
    control.push_back(last.exposed[step] * control_share(last, step));
  }
  const double control_plane = median(control);
  return {median(stragglers), median(shortest) - control_plane, control_plane};
}

Shares shares_of(const Round& round) {
  const double solo = median(step_times(fed(round.solo), false));
  const double full = median(step_times(round.full, round.coupled));
  const auto more_in_full = [&](Series series) {
    return (mean_of_medians(round.full, series) - mean_of_medians(round.none, series)) / full;
  };
  const Waits waits = waits_of(round.full);
  Shares out;
  std::array<double, kRows>& rows = out.rows;
  rows[kEfficiency] = solo / full;
  rows[kInterference] = (mean_of_medians(fed(round.none), &RankSamples::step) - solo) / full;
  rows[kInput] = input_of(round.full) / full;
  rows[kStragglers] = waits.stragglers / full;
  rows[kExposed] = waits.exposed / full;
  rows[kControl] = waits.control / full;
  rows[kOverlap] = more_in_full(&RankSamples::compute);
  rows[kUpdate] = more_in_full(&RankSamples::update);
  rows[kResidual] = 1;
  for (std::size_t row = 0; row < kResidual; ++row) rows[kResidual] -= rows[row];

  double independent_rate = 0;
  for (const RankSamples& rank : round.none) independent_rate += 1 / median(rank.step);
  out.against_independent = static_cast<double>(round.none.size()) / full / independent_rate;
  return out;
}

constexpr double kNear = 1e-4;  // rounds nearer to the median than 1e-4 of a step get almost equal weights

double distance(const Shares& a, const Shares& b) {
  double square = kNear * kNear;
  for (std::size_t row = 0; row < kRows; ++row) square += (a.rows[row] - b.rows[row]) * (a.rows[row] - b.rows[row]);
  return std::sqrt(square);
}

Shares weighted_mean(std::span<const Shares> rounds, std::span<const double> weights) {
  Shares mean;
  double total = 0;
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    total += weights[r];
    for (std::size_t row = 0; row < kRows; ++row) mean.rows[row] += weights[r] * rounds[r].rows[row];
    mean.against_independent += weights[r] * rounds[r].against_independent;
  }
  for (double& row : mean.rows) row /= total;
  mean.against_independent /= total;
  return mean;
}

// Returns the geometric median: the point with the smallest sum of distances to the rounds, where round r counts
// copies[r] times. This median is a weighted mean of the rounds, so its rows also sum to 1. A round far from the others
// moves the median no more than a near round does. Source: Weiszfeld, Tohoku Mathematical Journal 43 (1937).
Shares middle_of(std::span<const Shares> rounds, std::span<const double> copies) {
  constexpr int kMaxTurns = 100;
  constexpr double kClose = 1e-6;
  Shares middle = weighted_mean(rounds, copies);
  std::vector<double> weights(rounds.size());
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    for (std::size_t r = 0; r < rounds.size(); ++r) weights[r] = copies[r] / distance(rounds[r], middle);
    const Shares next = weighted_mean(rounds, weights);
    double moved = 0;
    for (std::size_t row = 0; row < kRows; ++row) moved = std::max(moved, std::abs(next.rows[row] - middle.rows[row]));
    middle = next;
    if (moved < kClose) break;
  }
  return middle;
}

bool enough_for_intervals(std::span<const Round> rounds) {
  std::size_t samples = 0;
  for (const Round& round : rounds) samples += round.full.at(0).step.size();
  return rounds.size() >= 2 && samples >= kMinForInterval;
}

// Returns the factor by which an interval from n resampled rounds is too narrow. It has two parts: the spread of few
// rounds is too small by sqrt(n / (n - 1)), and Student's distribution is wider than the normal distribution.
// Source: Abramowitz and Stegun, 26.7.5, the first two terms of the quantile's expansion.
double widening(std::size_t rounds) {
  constexpr double kNormal = 1.959964;  // the 97.5 % quantile
  constexpr double kSquare = kNormal * kNormal;
  const auto freedom = static_cast<double>(rounds - 1);
  const double student =
      1 + (kSquare + 1) / (4 * freedom) + ((5 * kSquare + 16) * kSquare + 3) / (96 * freedom * freedom);
  return student * std::sqrt((freedom + 1) / freedom);
}

// Returns true if the row is a time, which cannot be negative. Other rows are differences of times, which can.
bool is_time(std::size_t row) {
  return row == kEfficiency || row == kInput || row == kStragglers || row == kExposed || row == kControl;
}

double median_full_seconds(std::span<const Round> rounds) {
  std::vector<double> all;
  for (const Round& round : rounds) {
    const std::vector<double> times = step_times(round.full, round.coupled);
    all.insert(all.end(), times.begin(), times.end());
  }
  return median_in_place(all);
}

// Returns all rows, also those that are 0 in every round.
EfficiencyAnalysis analyse_rows(std::span<const Round> rounds, const IntervalOptions& options) {
  HVD_ASSERT(!rounds.empty());
  const std::size_t count = rounds.size();
  std::vector<Shares> shares;
  for (const Round& round : rounds) shares.push_back(shares_of(round));
  const Shares measured = middle_of(shares, std::vector<double>(count, 1));

  EfficiencyAnalysis out;
  const double full = median_full_seconds(rounds);
  for (std::size_t row = 0; row < kRows; ++row) {
    out.rows.push_back({std::string(kComponents[row].name), measured.rows[row], measured.rows[row] * full, std::nullopt,
                        std::nullopt});
  }
  out.efficiency = {measured.rows[kEfficiency], kNoInterval, kNoInterval};
  out.against_independent = {measured.against_independent, kNoInterval, kNoInterval};
  if (!enough_for_intervals(rounds)) return out;

  constexpr std::size_t kRoundBudget = 2'000'000;  // rounds drawn in all resamples together; they take some seconds
  const std::size_t resamples = std::min(options.resamples, std::max(kStoredReplicates, kRoundBudget / count));
  Draws draws(options.seed, 1);
  std::array<std::vector<double>, kRows> resampled;
  std::vector<double> independent;
  std::vector<double> copies(count);
  for (std::size_t i = 0; i < resamples; ++i) {
    std::fill(copies.begin(), copies.end(), 0);
    for (std::size_t n = 0; n < count; ++n) ++copies[draws.below(count)];
    const Shares drawn = middle_of(shares, copies);
    for (std::size_t row = 0; row < kRows; ++row) resampled[row].push_back(drawn.rows[row]);
    independent.push_back(drawn.against_independent);
  }
  const double wider = widening(count);
  for (std::size_t row = 0; row < kRows; ++row) {
    const double floor = is_time(row) ? 0 : -HUGE_VAL;
    Bootstrap fraction =
        bootstrap_of(measured.rows[row], std::move(resampled[row]), {wider, floor}, options.confidence);
    out.rows[row].low = fraction.estimate.low;
    out.rows[row].high = fraction.estimate.high;
    if (row != kEfficiency) continue;
    out.efficiency = fraction.estimate;
    out.efficiency_replicates = std::move(fraction.replicates);
  }
  out.against_independent =
      bootstrap_of(measured.against_independent, std::move(independent), {wider, 0}, options.confidence).estimate;
  return out;
}

}  // namespace

EfficiencyAnalysis analyse_efficiency(std::span<const Round> rounds, const IntervalOptions& options) {
  EfficiencyAnalysis analysis = analyse_rows(rounds, options);
  if (!waits_for_input(rounds)) analysis.rows.erase(analysis.rows.begin() + kInput);
  return analysis;
}

bool is_resolved(const Estimate& efficiency) {
  return efficiency.has_interval() && efficiency.high - efficiency.low <= kWidestEfficiency;
}

std::string efficiency_text(const Estimate& efficiency) {
  if (!efficiency.has_interval()) return std::string(kNoIntervalText);
  if (!is_resolved(efficiency)) return fmt::format(kWideText, 100 * efficiency.low, 100 * efficiency.high);
  return fmt::format("{:.1f} % [{:.1f}, {:.1f}]", 100 * efficiency.value, 100 * efficiency.low, 100 * efficiency.high);
}

Estimate estimate_of(const DecompositionRow& row) {
  return {row.fraction, row.low.value_or(kNoInterval), row.high.value_or(kNoInterval)};
}

}  // namespace hvd::bench
