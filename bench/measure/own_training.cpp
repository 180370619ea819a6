#include "bench/measure/own_training.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "bench/measure/median.h"

namespace hvd::bench {
namespace {

using Series = std::vector<double> RankSamples::*;

constexpr std::array<std::pair<std::string_view, Series>, 3> kParts{{{"input", &RankSamples::input},
                                                                     {"forward and backward", &RankSamples::compute},
                                                                     {"update", &RankSamples::update}}};

// [round][rank]: the median over the steps of phase none; 0 for a series that was not measured.
std::vector<std::vector<double>> medians_of_none(std::span<const Round> rounds, Series series) {
  std::vector<std::vector<double>> medians;
  for (const Round& round : rounds) {
    std::vector<double>& ranks = medians.emplace_back();
    for (const RankSamples& rank : round.none) {
      ranks.push_back((rank.*series).empty() ? 0 : median(rank.*series));
    }
  }
  return medians;
}

double mean_without(const std::vector<double>& ranks, std::size_t left_out) {
  double sum = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) sum += r == left_out ? 0 : ranks[r];
  return sum / static_cast<double>(ranks.size() - 1);
}

// [round]: by how much the median of `rank` is longer than the mean of the others' medians.
std::vector<double> longer(const std::vector<std::vector<double>>& medians, std::size_t rank) {
  std::vector<double> out;
  out.reserve(medians.size());
  for (const std::vector<double>& ranks : medians) out.push_back(ranks[rank] - mean_without(ranks, rank));
  return out;
}

std::vector<double> medians_over_rounds(const std::vector<std::vector<double>>& medians) {
  std::vector<double> out;
  for (std::size_t r = 0; r < medians.front().size(); ++r) {
    std::vector<double> of_rank;
    for (const std::vector<double>& ranks : medians) of_rank.push_back(ranks[r]);
    out.push_back(median_in_place(of_rank));
  }
  return out;
}

}  // namespace

void derive_exposed(Round& round) {
  for (std::size_t r = 0; r < round.full.size(); ++r) {
    RankSamples& full = round.full[r];
    const double alone = median(round.none.at(r).compute);
    full.exposed.clear();
    for (double& compute : full.compute) {
      full.exposed.push_back(std::max(compute - alone, 0.0));
      compute -= full.exposed.back();
    }
  }
}

std::optional<LateRank> late_rank(std::span<const Round> rounds, const IntervalOptions& options) {
  const std::vector<std::vector<double>> steps = medians_of_none(rounds, &RankSamples::step);
  const std::vector<double> usual = medians_over_rounds(steps);
  LateRank late;
  late.rank = static_cast<std::size_t>(std::max_element(usual.begin(), usual.end()) - usual.begin());
  late.seconds = median_interval(longer(steps, late.rank), options);
  const bool is_longer = late.seconds.has_interval() && late.seconds.low > 0;
  if (!is_longer || late.seconds.value <= kLate * mean_without(usual, late.rank)) return std::nullopt;
  for (const auto& [part, series] : kParts) {
    const double seconds = median(longer(medians_of_none(rounds, series), late.rank));
    if (seconds <= late.part_seconds) continue;
    late.part = part;
    late.part_seconds = seconds;
  }
  return late;
}

}  // namespace hvd::bench
