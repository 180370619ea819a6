#include "engine/runtime/roll_call.h"

#include <charconv>
#include <tuple>

namespace hvd {
namespace {

/// Ranks named in one message; a job of 512 must not print 500 of them.
constexpr std::size_t kMostNamed = 4;

std::string rank_at(std::size_t rank, const std::vector<std::string>& hosts) {
  return "rank " + std::to_string(rank) + " on " + (rank < hosts.size() ? hosts[rank] : std::string("unknown host"));
}

std::uint64_t take_number(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (error == std::errc{} && !text.empty() && text.front() == ' ') text.remove_prefix(1);
  return value;
}

}  // namespace

std::string RankStatus::to_text() const { return std::to_string(step) + ' ' + std::to_string(moved) + ' ' + activity; }

RankStatus RankStatus::parse(std::string_view text) {
  RankStatus status;
  status.step = take_number(text);
  status.moved = take_number(text);
  status.activity = text;
  return status;
}

Blame find_blame(int rank, const std::vector<std::optional<std::string>>& answers,
                 const std::vector<std::string>& hosts) {
  const auto own = static_cast<std::size_t>(rank);
  std::vector<std::size_t> silent;
  std::vector<RankStatus> statuses(answers.size());
  bool first = true;
  std::size_t least = 0, most = 0, at_least = 0;
  const auto progress = [&](std::size_t r) { return std::tie(statuses[r].step, statuses[r].moved); };
  for (std::size_t r = 0; r < answers.size(); ++r) {
    if (!answers[r]) {
      if (r != own) silent.push_back(r);
      continue;
    }
    statuses[r] = RankStatus::parse(*answers[r]);
    if (first || progress(r) > progress(most)) most = r;
    if (first || progress(r) < progress(least)) {
      least = r;
      at_least = 0;
    }
    if (progress(r) == progress(least)) ++at_least;
    first = false;
  }

  Blame blame;
  blame.text = kBlameMark;
  if (!silent.empty()) {
    blame.found = true;
    for (std::size_t i = 0; i < silent.size() && i < kMostNamed; ++i) {
      blame.text += (i > 0 ? ", " : "") + rank_at(silent[i], hosts);
    }
    if (silent.size() > kMostNamed) blame.text += " and " + std::to_string(silent.size() - kMostNamed) + " more";
    blame.text += " did not answer";
  }
  if (first) {
    if (silent.empty()) blame.text += "nobody was asked";
    return blame;
  }
  if (progress(least) < progress(most)) {
    blame.text += silent.empty() ? "" : "; ";
    blame.text += rank_at(least, hosts);
    if (at_least > 1) blame.text += " (and " + std::to_string(at_least - 1) + " more)";
    blame.text += " is furthest behind: " + statuses[least].activity + "; " + rank_at(most, hosts) +
                  " is ahead: " + statuses[most].activity;
    blame.found = true;
  } else if (silent.empty()) {
    blame.text += "all ranks answered and are equally far; ";
    const std::size_t other = answers.size() > 1 && own == 0 ? 1 : 0;
    blame.text += rank_at(other, hosts) + ": " + statuses[other].activity;
  }
  return blame;
}

}  // namespace hvd
