#include "bench/measure/rank_comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "bench/measure/median.h"
#include "bench/measure/resample.h"
#include "engine/base/assert.h"
#include "engine/base/philox.h"

namespace hvd::bench {
namespace {

constexpr double kDeviate = 2.5758293035489004;  // quantile of the normal distribution for a 99 % interval
constexpr std::size_t kMany = 8;                 // the middle of so many members or more is their median
constexpr double kFalseAlarms = 0.03;            // fraction of healthy runs in which some rank is accused
constexpr double kMadToDeviation = 1.4826;       // standard deviation / MAD of a normal distribution
constexpr double kMinError = 1e-4;               // lower bound: a smaller standard error is replaced by this value
constexpr std::size_t kMinRuns = std::size_t{1} << 13, kMaxRuns = std::size_t{1} << 16;
constexpr std::size_t kDrawn = std::size_t{1} << 22;  // random numbers drawn for a critical score, approximately

/// out[m]: the median of all `values` except values[m].
std::vector<double> medians_of_others(const std::vector<double>& values) {
  const std::size_t members = values.size();
  std::vector<std::size_t> order(members);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> out(members);
  for (std::size_t place = 0; place < members; ++place) {
    const auto among_others = [&](std::size_t position) {
      return values[order[position < place ? position : position + 1]];
    };
    out[order[place]] = (among_others((members - 2) / 2) + among_others((members - 1) / 2)) / 2;
  }
  return out;
}

/// [member][step]: the logarithm of (time / median time of the other members in the same step).
std::vector<std::vector<double>> log_ratios(std::span<const std::vector<double>> seconds) {
  std::vector<std::vector<double>> ratios(seconds.begin(), seconds.end());
  std::vector<double> step(seconds.size());
  for (std::size_t s = 0; s < ratios.front().size(); ++s) {
    for (std::size_t m = 0; m < step.size(); ++m) step[m] = std::log(seconds[m][s]);
    const std::vector<double> usual = medians_of_others(step);
    for (std::size_t m = 0; m < step.size(); ++m) ratios[m][s] = step[m] - usual[m];
  }
  return ratios;
}

/// The times of the members, in logarithms.
struct TypicalTimes {
  double usual = 0;            ///< the median over the steps of the middle of the members
  std::vector<double> places;  ///< [member]: the median over the steps of (time - middle of the members)
};

// The middle of few members is their mean: the median of three or five is the noise of one of them, which then seems to
// have none, and hides a part of its slowness. The median of many is better, because some of many always pause.
TypicalTimes typical_times(std::span<const std::vector<double>> seconds) {
  std::vector<std::vector<double>> places(seconds.begin(), seconds.end());
  std::vector<double> middles(seconds.front().size()), step(seconds.size());
  for (std::size_t s = 0; s < middles.size(); ++s) {
    for (std::size_t m = 0; m < step.size(); ++m) step[m] = places[m][s] = std::log(seconds[m][s]);
    middles[s] = step.size() < kMany ? std::accumulate(step.begin(), step.end(), 0.0) / static_cast<double>(step.size())
                                     : median(step);
  }
  for (std::vector<double>& member : places) {
    for (std::size_t s = 0; s < middles.size(); ++s) member[s] -= middles[s];
  }
  TypicalTimes typical{.usual = median(middles), .places = {}};
  for (const std::vector<double>& place : places) typical.places.push_back(median(place));
  return typical;
}

struct MedianInterval {
  double low = 0, high = 0;
  bool long_enough = false;  // the series has enough steps for an interval
};

/// Returns the interval of the sign test. Successive steps are correlated, so the test uses a smaller number of steps
/// than the series has. It is the number of independent steps that give as much information as an AR(1) series with
/// this lag-one autocorrelation.
MedianInterval median_interval_of_steps(std::vector<double> series) {
  const double steps = static_cast<double>(series.size());
  const auto [least, most] = std::minmax_element(series.begin(), series.end());
  const double rho = *least == *most ? 0.0 : lag_one_autocorrelation(series);
  const double reach = kDeviate / 2 * std::sqrt(steps * (1 + rho) / (1 - rho));
  const double middle = (steps - 1) / 2;
  std::sort(series.begin(), series.end());
  return {series[static_cast<std::size_t>(std::floor(std::max(middle - reach, 0.0)))],
          series[static_cast<std::size_t>(std::ceil(std::min(middle + reach, steps - 1)))], reach <= middle};
}

/// Returns the modified z-score of each value: its deviation from the median, divided by a standard deviation. The
/// standard deviation is estimated from the MAD (median absolute deviation), or is errors[m] if errors[m] is larger.
std::vector<double> scores(const std::vector<double>& values, std::span<const double> errors) {
  const double middle = median(values);
  std::vector<double> deviations(values.size());
  std::transform(values.begin(), values.end(), deviations.begin(), [&](double v) { return std::abs(v - middle); });
  const double spread = kMadToDeviation * median_in_place(deviations);
  std::vector<double> out(values.size());
  for (std::size_t m = 0; m < values.size(); ++m) {
    out[m] = (values[m] - middle) / std::max({spread, errors[m], kMinError});
  }
  return out;
}

double linear_quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

/// Groups the ranks by host, in the order of each host's first rank.
std::vector<NodeSlowness> nodes_of(std::span<const std::string> hosts) {
  std::vector<NodeSlowness> nodes;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    auto node = std::find_if(nodes.begin(), nodes.end(), [&](const NodeSlowness& n) { return n.host == hosts[r]; });
    if (node == nodes.end()) node = nodes.insert(nodes.end(), {hosts[r], {}, {}});
    node->ranks.push_back(r);
  }
  return nodes;
}

std::vector<double> median_over(std::span<const std::vector<double>> seconds, const std::vector<std::size_t>& ranks) {
  std::vector<double> medians(seconds.front().size());
  std::vector<double> step(ranks.size());
  for (std::size_t s = 0; s < medians.size(); ++s) {
    for (std::size_t i = 0; i < ranks.size(); ++i) step[i] = seconds[ranks[i]][s];
    medians[s] = median(step);
  }
  return medians;
}

/// Groups the `members` whose checksums of `snapshot` are equal. The largest group comes first. Groups of equal size
/// are ordered by their first member.
std::vector<std::vector<std::size_t>> parties_of(std::span<const std::vector<std::uint64_t>> checksums,
                                                 const std::vector<std::size_t>& members, std::size_t snapshot) {
  std::map<std::uint64_t, std::vector<std::size_t>> by_checksum;
  for (const std::size_t m : members) by_checksum[checksums[m][snapshot]].push_back(m);
  std::vector<std::vector<std::size_t>> parties;
  parties.reserve(by_checksum.size());
  for (auto& [checksum, party] : by_checksum) parties.push_back(std::move(party));
  std::sort(parties.begin(), parties.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  return parties;
}

}  // namespace

double critical_score(std::size_t members, std::uint64_t seed) {
  const std::size_t runs = std::clamp(kDrawn / members, kMinRuns, kMaxRuns);
  const std::vector<double> no_errors(members, 0.0);
  std::vector<double> largest(runs);
  std::vector<double> drawn(members);
  for (std::size_t run = 0; run < runs; ++run) {
    const Philox generator(seed, run);
    for (std::size_t m = 0; m < members; ++m) drawn[m] = generator.normal(m);
    const std::vector<double> usual = medians_of_others(drawn);
    for (std::size_t m = 0; m < members; ++m) drawn[m] -= usual[m];
    const std::vector<double> drawn_scores = scores(drawn, no_errors);
    largest[run] = *std::max_element(drawn_scores.begin(), drawn_scores.end());
  }
  return linear_quantile(std::move(largest), 1 - kFalseAlarms);
}

std::vector<Slowness> compare_times(std::span<const std::vector<double>> seconds, double threshold, double critical) {
  const std::size_t members = seconds.size();
  HVD_ASSERT(members >= 2 && seconds.front().size() >= kMinSteps);
  const TypicalTimes typical = typical_times(seconds);
  std::vector<double> middle = medians_of_others(typical.places), errors(members);
  std::vector<MedianInterval> intervals(members);
  std::vector<std::vector<double>> series = log_ratios(seconds);
  for (std::size_t m = 0; m < members; ++m) {
    middle[m] = typical.places[m] - middle[m];
    const double shift = middle[m] - median(series[m]);  // 0 for two members, and small for more
    intervals[m] = median_interval_of_steps(std::move(series[m]));
    intervals[m].low += shift;
    intervals[m].high += shift;
    errors[m] = (intervals[m].high - intervals[m].low) / (2 * kDeviate);
  }
  const bool scored = members >= kMajority;
  const std::vector<double> score = scored ? scores(middle, errors) : std::vector<double>();
  const auto above_all_others = [&](std::size_t m) {
    for (std::size_t other = 0; other < members; ++other) {
      if (other != m && intervals[other].high >= intervals[m].low) return false;
    }
    return true;
  };
  std::vector<Slowness> judged(members);
  for (std::size_t m = 0; m < members; ++m) {
    Slowness& slowness = judged[m];
    slowness.seconds = std::exp(typical.usual + typical.places[m]);
    slowness.slower = std::expm1(middle[m]);
    slowness.low = std::expm1(intervals[m].low);
    slowness.high = std::expm1(intervals[m].high);
    if (scored) slowness.score = score[m];
    const bool stands_out = scored ? score[m] > critical : above_all_others(m);
    slowness.slow = stands_out && slowness.low >= threshold && intervals[m].long_enough;
    slowness.unclear = slowness.slower >= threshold && !slowness.slow;
  }
  return judged;
}

SlowRanks find_slow_ranks(std::span<const std::vector<double>> seconds, std::span<const std::string> hosts,
                          double threshold, std::uint64_t seed) {
  const auto compare = [&](std::span<const std::vector<double>> members) {
    const double critical = members.size() >= kMajority ? critical_score(members.size(), seed) : 0;
    return compare_times(members, threshold, critical);
  };
  SlowRanks result;
  result.ranks = compare(seconds);
  std::vector<bool> explained(result.ranks.size(), false);
  std::vector<NodeSlowness> nodes = nodes_of(hosts);
  if (nodes.size() > 1 && nodes.size() < hosts.size()) {
    std::vector<std::vector<double>> of_nodes;
    of_nodes.reserve(nodes.size());
    for (const NodeSlowness& node : nodes) of_nodes.push_back(median_over(seconds, node.ranks));
    const std::vector<Slowness> times = compare(of_nodes);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const std::vector<std::size_t>& own = nodes[n].ranks;
      const bool all =
          std::all_of(own.begin(), own.end(), [&](std::size_t r) { return result.ranks[r].slower >= threshold; });
      if (!times[n].slow || own.size() < 2 || !all) continue;
      for (const std::size_t r : own) explained[r] = true;
      nodes[n].time = times[n];
      result.nodes.push_back(std::move(nodes[n]));
    }
  }
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    if (explained[r]) continue;
    if (result.ranks[r].slow) result.slow.push_back(r);
    if (result.ranks[r].unclear) result.unclear.push_back(r);
  }
  return result;
}

BitVote vote(std::span<const std::vector<std::uint64_t>> checksums) {
  HVD_ASSERT(!checksums.empty());
  BitVote result;
  std::vector<std::size_t> trusted(checksums.size());
  std::iota(trusted.begin(), trusted.end(), std::size_t{0});
  for (std::size_t snapshot = 0; snapshot < checksums.front().size(); ++snapshot) {
    std::vector<std::vector<std::size_t>> parties = parties_of(checksums, trusted, snapshot);
    if (parties.size() == 1) continue;
    if (checksums.size() < kMajority || 2 * parties.front().size() <= checksums.size()) {
      result.disagreement = Disagreement{snapshot, std::move(parties)};
      break;
    }
    std::vector<std::size_t> others;
    for (std::size_t p = 1; p < parties.size(); ++p) others.insert(others.end(), parties[p].begin(), parties[p].end());
    std::sort(others.begin(), others.end());
    for (const std::size_t member : others) result.named.push_back({member, snapshot});
    trusted = std::move(parties.front());
  }
  result.reference = trusted.front();
  return result;
}

}  // namespace hvd::bench
