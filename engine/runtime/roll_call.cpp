#include "engine/runtime/roll_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

#include "engine/comm/communicator.h"

namespace hvd {
namespace {

/// Maximum number of ranks named in one message, so that a job of 512 ranks does not print 500 names.
constexpr std::size_t kMaxNamed = 4;

using comm::rank_at;

/// Reads one number and the space after it.
bool take_number(std::string_view& text, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data() + text.size() || *end != ' ') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

bool behind(const RankStatus& a, const RankStatus& b) {
  return std::tie(a.step, a.moved, a.waits) < std::tie(b.step, b.moved, b.waits);
}

}  // namespace

std::string RankStatus::to_text() const { return fmt::format("{} {} {} {}", step, moved, waits ? 1 : 0, activity); }

std::optional<RankStatus> RankStatus::parse(std::string_view text) {
  RankStatus status;
  std::uint64_t waiting = 0;
  if (!take_number(text, status.step) || !take_number(text, status.moved) || !take_number(text, waiting)) {
    return std::nullopt;
  }
  status.waits = waiting != 0;
  status.activity = text;
  return status;
}

RollCallResult find_late_rank(int rank, const std::vector<std::optional<std::string>>& answers,
                              const std::vector<std::string>& hosts) {
  std::vector<std::size_t> silent;
  std::vector<std::pair<std::size_t, RankStatus>> known;
  for (std::size_t r = 0; r < answers.size(); ++r) {
    if (!answers[r]) {
      if (r != static_cast<std::size_t>(rank)) silent.push_back(r);
    } else if (auto status = RankStatus::parse(*answers[r])) {
      known.emplace_back(r, std::move(*status));
    }
  }
  const auto by_progress = [](const auto& a, const auto& b) { return behind(a.second, b.second); };
  const auto least = std::min_element(known.begin(), known.end(), by_progress);
  const auto most = std::max_element(known.begin(), known.end(), by_progress);
  const auto as_far = std::count_if(known.begin(), known.end(),
                                    [&](const auto& answer) { return !behind(least->second, answer.second); });

  RollCallResult late_rank;
  late_rank.text = kRollCallMark;
  if (!silent.empty()) {
    late_rank.found = true;
    for (std::size_t i = 0; i < silent.size() && i < kMaxNamed; ++i) {
      late_rank.text += (i > 0 ? ", " : "") + rank_at(silent[i], hosts);
    }
    if (silent.size() > kMaxNamed) late_rank.text += fmt::format(" and {} more", silent.size() - kMaxNamed);
    late_rank.text += " did not answer";
  }
  if (!known.empty() && by_progress(*least, *most)) {
    late_rank.found = true;
    late_rank.text +=
        fmt::format("{}{} {} furthest behind: {}; {} is ahead: {}", silent.empty() ? "" : "; ",
                    rank_at(least->first, hosts), as_far > 1 ? fmt::format("and {} more are", as_far - 1) : "is",
                    least->second.activity, rank_at(most->first, hosts), most->second.activity);
  } else if (silent.empty()) {
    late_rank.text += "all ranks answered and none is behind";
    for (const auto& [r, status] : known) {
      late_rank.text += fmt::format("; {}: {}", rank_at(r, hosts), status.activity);
      if (r >= kMaxNamed) break;
    }
  }
  return late_rank;
}

}  // namespace hvd
