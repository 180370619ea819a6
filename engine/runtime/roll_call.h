// Finds the rank at fault when a wait for a peer times out. Every rank reports its last activity; the rank that does
// not answer, or is furthest behind, is named. This file handles only the texts; ControlPlane exchanges them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

/// The answer of one rank to a roll call. `step`, `moved` and `waits`, compared in this order, measure its progress.
struct RankStatus {
  std::uint64_t step = 0;   ///< number of steps that the rank has begun
  std::uint64_t moved = 0;  ///< number of batches reduced in this step
  bool waits = false;       ///< true if this rank waits for its peers; else the peers wait for this rank
  std::string activity;     ///< what the rank is doing, for the user

  [[nodiscard]] std::string to_text() const;
  /// Returns nullopt if to_text() did not write `text`. A rank inside a wait answers with another text and is not at
  /// fault.
  static std::optional<RankStatus> parse(std::string_view text);
};

struct RollCallResult {
  bool found = false;  ///< true if one or more ranks can be named
  std::string text;    ///< starts with kRollCallMark
};

/// Marks a text that already names the guilty rank, so that a rank which receives this text holds no second roll call.
inline constexpr std::string_view kRollCallMark = "; roll call: ";

/// `answers[r]` is empty if rank r did not answer. `hosts` is indexed by rank.
RollCallResult find_late_rank(int rank, const std::vector<std::optional<std::string>>& answers,
                              const std::vector<std::string>& hosts);

}  // namespace hvd
