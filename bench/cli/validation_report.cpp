#include "bench/cli/validation_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "bench/cli/console.h"

namespace hvd::bench {
namespace {

constexpr std::size_t kShownRanks = 16;  // `hvdb ranks` shows as many

std::string slower_text(const ValidatedRank& rank) {
  if (!rank.time) return "-";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.1f [%.1f, %.1f]", 100 * rank.time->slower, 100 * rank.time->low,
                100 * rank.time->high);
  return text.data();
}

/// Returns the ranks that the table shows: the slowest, then those whose bits differ.
std::vector<std::size_t> shown_ranks(const Validation& validation) {
  std::vector<std::size_t> order(validation.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto slower = [&](std::size_t r) { return validation.ranks[r].time ? validation.ranks[r].time->slower : 0.0; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return slower(a) > slower(b); });
  order.resize(std::min(order.size(), kShownRanks));
  for (const ValidationFinding& finding : validation.findings) {
    if (finding.kind != ValidationFinding::Kind::kDiffers) continue;
    for (const int rank : finding.ranks) {
      const auto r = static_cast<std::size_t>(rank);
      if (std::find(order.begin(), order.end(), r) == order.end()) order.push_back(r);
    }
  }
  return order;
}

std::string all_is_good(const Validation& validation) {
  std::string text = "equal bits on equal ranks in " + std::to_string(validation.steps) + " steps, and no rank is slow";
  double reach = 0;
  for (const ValidatedRank& rank : validation.ranks) reach = std::max(reach, rank.time ? rank.time->high : 0);
  if (reach < validation.threshold) return text;
  std::array<char, 96> doubt{};
  std::snprintf(doubt.data(), doubt.size(), " as far as can be told: intervals reach up to %.1f %%", 100 * reach);
  return text + doubt.data();
}

std::string row(std::size_t rank, const ValidatedRank& one) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "%5zu %5zu %10.2f %22s  %-16s  ", rank, one.group, 1e3 * one.seconds,
                slower_text(one).c_str(), one.weights.c_str());
  return text.data() + printable(one.host) + (one.gpu.empty() ? "" : ", " + printable(one.gpu)) + "\n";
}

}  // namespace

std::string validation_text(const Validation& validation) {
  std::array<char, 160> header{};
  std::snprintf(header.data(), header.size(), "\n%5s %5s %10s %22s  %-16s  %s\n", "rank", "group", "ms",
                "slower % [99 %]", "weights at the end", "host");
  std::string text = header.data();
  const std::vector<std::size_t> shown = shown_ranks(validation);
  for (const std::size_t r : shown) text += row(r, validation.ranks[r]);
  if (const std::size_t more = validation.ranks.size() - shown.size(); more > 0) {
    text += "  and " + std::to_string(more) + " more that are faster\n";
  }
  text += "\n";
  for (std::size_t g = 0; g < validation.groups.size(); ++g) {
    const auto ranks = std::count_if(validation.ranks.begin(), validation.ranks.end(),
                                     [g](const ValidatedRank& rank) { return rank.group == g; });
    text += "group " + std::to_string(g) + "     " + std::to_string(ranks) +
            " equal ranks: " + printable(validation.groups[g]) + "\n";
  }
  for (const ValidationFinding& finding : validation.findings) {
    text += "FOUND       " + printable(finding.text) + "\n";
  }
  if (validation.findings.empty()) text += "good        " + all_is_good(validation) + "\n";
  for (const std::string& note : validation.notes) text += "note        " + printable(note) + "\n";
  return text;
}

}  // namespace hvd::bench
