// Who is to blame when a wait for a peer runs out: every rank tells what it last did, and the one that does
// not answer, or is furthest behind, is named. Text and its reading; the exchange is ControlPlane's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

/// What one rank tells the others. The first three, in this order, are how far it is.
struct RankStatus {
  std::uint64_t step = 0;   ///< steps begun
  std::uint64_t moved = 0;  ///< batches reduced within the step
  bool waits = false;       ///< for its peers; else they wait for it
  std::string activity;     ///< for people

  [[nodiscard]] std::string to_text() const;
  /// Nothing for a text of another kind: a rank that the call met inside a wait, and which is not to blame.
  static std::optional<RankStatus> parse(std::string_view text);
};

struct Blame {
  bool found = false;  ///< one rank, or some, can be named
  std::string text;    ///< starts with kBlameMark
};

/// Marks a text that already says who is to blame, so that it is not asked twice on its way through ranks.
inline constexpr std::string_view kBlameMark = "; roll call: ";

/// `answers` is [rank], empty for a rank that did not answer; `hosts` is [rank].
Blame find_blame(int rank, const std::vector<std::optional<std::string>>& answers,
                 const std::vector<std::string>& hosts);

}  // namespace hvd
