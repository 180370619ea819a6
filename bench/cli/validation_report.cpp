#include "bench/cli/validation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "bench/cli/console.h"

namespace hvd::bench {
namespace {

constexpr std::size_t kShownRanks = 16;  // `hvdb ranks` has the same limit

std::string slower_text(const ValidatedRank& rank) {
  if (!rank.time) return "-";
  return fmt::format("{:.1f} [{:.1f}, {:.1f}]", 100 * rank.time->slower, 100 * rank.time->low, 100 * rank.time->high);
}

/// Returns the ranks that the table shows: the slowest, then those whose bits differ from other ranks' bits.
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
  std::string text = fmt::format("equal bits on equal ranks in {} steps, and no rank is slow", validation.steps);
  double reach = 0;
  for (const ValidatedRank& rank : validation.ranks) reach = std::max(reach, rank.time ? rank.time->high : 0);
  if (reach < validation.threshold) return text;
  return text + fmt::format(" as far as can be told: intervals reach up to {:.1f} %", 100 * reach);
}

std::string row(std::size_t rank, const ValidatedRank& validated) {
  return fmt::format("{:>5} {:>5} {:>10.2f} {:>22}  {:<16}  {}{}{}\n", rank, validated.group, 1e3 * validated.seconds,
                     slower_text(validated), validated.weights, printable(validated.host),
                     validated.gpu.empty() ? "" : ", ", printable(validated.gpu));
}

}  // namespace

std::string validation_text(const Validation& validation) {
  std::string text = fmt::format("\n{:>5} {:>5} {:>10} {:>22}  {:<16}  {}\n", "rank", "group", "ms", "slower % [99 %]",
                                 "weights at the end", "host");
  const std::vector<std::size_t> shown = shown_ranks(validation);
  for (const std::size_t r : shown) text += row(r, validation.ranks[r]);
  if (const std::size_t more = validation.ranks.size() - shown.size(); more > 0) {
    text += fmt::format("  and {} more that are faster\n", more);
  }
  text += "\n";
  for (std::size_t g = 0; g < validation.groups.size(); ++g) {
    const auto ranks = std::count_if(validation.ranks.begin(), validation.ranks.end(),
                                     [g](const ValidatedRank& rank) { return rank.group == g; });
    text += fmt::format("group {}     {} equal ranks: {}\n", g, ranks, printable(validation.groups[g]));
  }
  for (const ValidationFinding& finding : validation.findings) {
    text += fmt::format("FOUND       {}\n", printable(finding.text));
  }
  if (validation.findings.empty()) text += fmt::format("good        {}\n", all_is_good(validation));
  for (const std::string& note : validation.notes) text += fmt::format("note        {}\n", printable(note));
  return text;
}

}  // namespace hvd::bench
