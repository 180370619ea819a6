#include "bench/coll/result.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "bench/measure/median.h"
#include "bench/tune/crossovers.h"
#include "engine/base/error.h"

namespace hvd::bench::coll {
namespace {

constexpr double kGigabit = 1e9 / 8;  // bytes per second

template <class Value>
double median_of(const std::vector<Sample>& samples, Value&& value) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) values.push_back(value(sample));
  return median_in_place(values);
}

void name_latest(const std::vector<Sample>& samples, CellResult& result) {
  std::map<int, std::size_t> times;
  for (const Sample& sample : samples) ++times[sample.last_rank];
  const auto most =
      std::max_element(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  result.last_rank = most->first;
  result.last_share = static_cast<double>(most->second) / static_cast<double>(samples.size());
}

Spread spread_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto percentile = [&](std::size_t per_cent) { return seconds[(seconds.size() * per_cent + 99) / 100 - 1]; };
  const auto count = static_cast<double>(seconds.size());
  Spread spread;
  spread.minimum = seconds.front();
  spread.maximum = seconds.back();
  spread.percentile_95 = percentile(95);
  spread.percentile_99 = percentile(99);
  spread.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double sample : seconds) squares += (sample - spread.mean) * (sample - spread.mean);
  spread.deviation = std::sqrt(squares / count);
  return spread;
}

/// Returns the interval of times or ratios. An end below 0, which few scattered values may give, is replaced by 0.
Estimate interval_from_zero(const std::vector<double>& values) {
  Estimate estimate = quick_interval(values);
  if (estimate.has_interval()) estimate.low = std::max(0.0, estimate.low);
  return estimate;
}

/// Returns the median over rounds of the time in `samples` / the time in `base`, with its interval. Uses the rounds in
/// which both series have a sample.
std::optional<Estimate> ratio_of(const std::vector<Sample>& samples, const std::vector<Sample>& base) {
  std::vector<double> ratios;
  auto other = base.begin();
  for (const Sample& sample : samples) {
    while (other != base.end() && other->round < sample.round) ++other;
    if (other == base.end()) break;
    if (other->round == sample.round && other->seconds > 0) ratios.push_back(sample.seconds / other->seconds);
  }
  if (ratios.empty()) return std::nullopt;
  return interval_from_zero(ratios);
}

CellResult result_of(const Cell& cell, const std::vector<Sample>& samples, int ranks, const StoppingRule& rule) {
  CellResult result;
  result.cell = cell;
  result.bytes = cell.problem.bytes(ranks);
  result.samples = samples.size();
  result.taken = samples;
  if (samples.empty()) return result;
  result.seconds = interval_from_zero(seconds_of(samples));
  result.settled = samples.size() >= rule.minimum_samples && result.seconds.has_interval() &&
                   relative_half_width(result.seconds) <= rule.target_half_width;
  result.transfer = median_of(samples, [](const Sample& sample) { return sample.transfer; });
  result.skew = median_of(samples, [](const Sample& sample) { return sample.skew; });
  name_latest(samples, result);
  result.spread = spread_of(seconds_of(samples));
  if (result.seconds.value > 0) {
    result.algorithm_rate = static_cast<double>(result.bytes) / result.seconds.value;
    result.bus_rate = result.algorithm_rate * bus_factor(cell.problem.collective, ranks);
  }
  return result;
}

}  // namespace

int CollResult::exit_code() const {
  const bool wrong =
      std::any_of(cells.begin(), cells.end(), [](const CellResult& cell) { return cell.wrong.value_or(0) > 0; });
  if (wrong) return hvd::exit_code(Errc::kCheckFailed);
  return interrupted.empty() ? 0 : hvd::exit_code(Errc::kInterrupted);
}

std::vector<CellResult> results_of(const std::vector<Cell>& cells, const Schedule& schedule,
                                   const std::vector<std::optional<std::uint64_t>>& wrong, const World& world,
                                   std::optional<double> link_gbit, const std::string& interrupted) {
  std::map<std::size_t, std::size_t> bare, first;  // group -> index of its bare cell, and of its first variant's cell
  for (std::size_t i = 0; i < cells.size(); ++i) {
    (cells[i].variant == kBare ? bare : first).emplace(cells[i].group, i);
  }
  std::vector<CellResult> results;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const Cell& cell = cells[i];
    if (cell.variant == kBare) continue;
    const std::vector<Sample>& samples = schedule.samples(i);
    CellResult result = result_of(cell, samples, world.ranks, schedule.rule().stop);
    result.batch = schedule.operations(i);
    result.wrong = wrong[i];
    result.stop_reason = schedule.stop_reason(i).empty() ? interrupted : schedule.stop_reason(i);
    if (cell.variant > 0) result.ratio = ratio_of(samples, schedule.samples(first.at(cell.group)));
    const auto kernel = bare.find(cell.group);
    if (kernel != bare.end() && result.seconds.value > 0 && !schedule.samples(kernel->second).empty()) {
      result.bound = median(seconds_of(schedule.samples(kernel->second))) / result.seconds.value;
    } else if (link_gbit && world.nodes > 1 && result.bus_rate > 0) {
      result.bound = result.bus_rate / (*link_gbit * kGigabit);
    }
    results.push_back(std::move(result));
  }
  return results;
}

std::vector<Variant> crossover_variants(const Variant& base) {
  constexpr std::size_t kAllSizes = SIZE_MAX;
  const auto side = [&base](const char* name, const comm::Thresholds& thresholds) {
    Variant variant = base;
    variant.name = std::string("between=") + name;
    variant.comm.thresholds = thresholds;
    return variant;
  };
  return {side("doubling", {kAllSizes, 0, kAllSizes}), side("rabenseifner", {0, kAllSizes, 0}),
          side("ring", {0, 0, 0})};
}

comm::Thresholds crossovers_of(const std::vector<CellResult>& cells) {
  struct Group {
    MeasuredCollective collective{};
    std::size_t bytes = 0;
    std::array<double, 3> seconds{};  // [variant]; 0: not measured
  };
  std::map<std::size_t, Group> groups;
  for (const CellResult& cell : cells) {
    Group& group = groups[cell.cell.group];
    group.collective = cell.cell.problem.collective;
    group.bytes = cell.bytes;
    const int variant = cell.cell.variant;
    if (cell.samples > 0 && variant >= 0) group.seconds.at(static_cast<std::size_t>(variant)) = cell.seconds.value;
  }
  std::vector<AllReduceTimes> reductions;
  std::vector<ShareTimes> shares;
  for (const auto& [number, group] : groups) {
    const auto [doubling, rabenseifner, ring] = group.seconds;
    if (std::min({doubling, rabenseifner, ring}) <= 0) continue;
    if (group.collective == MeasuredCollective::kAllReduce) {
      reductions.push_back({group.bytes, doubling, rabenseifner, ring});
    } else {
      shares.push_back({group.bytes, doubling, ring});
    }
  }
  return best_thresholds(std::move(reductions), std::move(shares));
}

}  // namespace hvd::bench::coll
