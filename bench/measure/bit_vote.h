// Finds members (ranks) whose bits differ from the majority. Equal bits have equal checksums. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hvd::bench {

struct Deviation {
  std::size_t member = 0;
  std::size_t snapshot = 0;  ///< the first snapshot in which the member differs
};

/// From `snapshot` on it is unknown which members are right, because no strict majority agrees or there are fewer than
/// kMajority members.
struct Disagreement {
  std::size_t snapshot = 0;
  std::vector<std::vector<std::size_t>> parties;  ///< groups with equal bits, the largest first; without named members
};

struct BitVote {
  std::vector<Deviation> named;  ///< ordered by snapshot, then by member
  std::optional<Disagreement> disagreement;
  std::size_t reference = 0;  ///< a member that is not named
};

/// `checksums[member][snapshot]` has at least one member, and all members have the same number of snapshots. A member
/// that differs from a strict majority of all members is named. The vote on later snapshots leaves named members out,
/// because their weights stay wrong. With fewer than kMajority members (slow_ranks.h) no member is named.
BitVote vote(std::span<const std::vector<std::uint64_t>> checksums);

}  // namespace hvd::bench
