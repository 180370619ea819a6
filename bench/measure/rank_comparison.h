// Compares ranks with one another. Finds the ranks or nodes that are slower than the others, and the ranks whose bits
// differ from the majority. Pure: the same values and seed give the same answer.
//
// Times: scripts/hvdb/judge/slow_ranks.py applies the same rules to stored runs; tests/scripts compares the two.
// Every time is divided by the middle of all members (ranks or nodes) in the same step, their median or, of less than
// eight, their geometric mean, so that a disturbance of all members cancels. A member's time is the median of these
// ratios over the steps, times the usual time of a step. Its slowness compares that time with the median of the others'
// times. The interval comes from the ratios of its times to the median time of the other members in the same step.
// Sources: B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers, 1993 (the modified z-score); P. Westfall and
// S. Young, Resampling-Based Multiple Testing, 1993 (the largest score of a healthy run as reference for every score);
// H. David and H. Nagaraja, Order Statistics, 2003, section 7.1 (the interval of a median).
//
// Bits: members vote by checksums, because equal bits have equal checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hvd::bench {

/// Fewer members than this have no majority that shows which members are healthy.
inline constexpr std::size_t kMajority = 4;
/// Fewer steps than this give no interval.
inline constexpr int kMinSteps = 10;

/// Compares one member with the others. If `slower` is 0.05, the member is 5 % slower than the others.
struct Slowness {
  double seconds = 0;  ///< time of a step; `slower` compares it with the median of the others' `seconds`
  double slower = 0;
  double low = 0, high = 0;     ///< 99 % interval of `slower`
  std::optional<double> score;  ///< modified z-score; none with fewer than kMajority members
  bool slow = false;            ///< the member is accused of being slow
  bool unclear = false;         ///< the member is slower by at least the threshold, but is not accused
};

/// `seconds[member][step]` are times above 0 of two or more members. Each member has the same number of steps, at least
/// kMinSteps. A member is accused only if it is slower by at least the fraction `threshold`. `critical` is the
/// result of critical_score() for this number of members. With fewer than kMajority members `critical` is not used: the
/// slowest member is accused if its interval lies above the threshold and above the intervals of all other members.
std::vector<Slowness> compare_times(std::span<const std::vector<double>> seconds, double threshold, double critical);

struct NodeSlowness {
  std::string host;
  Slowness time;
  std::vector<std::size_t> ranks;  ///< indices into SlowRanks::ranks
};

struct SlowRanks {
  std::vector<Slowness> ranks;      ///< [rank]
  std::vector<NodeSlowness> nodes;  ///< slow nodes; every rank of a slow node is slower by at least the threshold
  std::vector<std::size_t> slow;    ///< slow ranks that are not on slow nodes
  std::vector<std::size_t> unclear;
};

/// Compares the ranks as compare_times() does. Also compares the nodes if some node has several ranks; a node's time in
/// a step is the median time of its ranks. `hosts[rank]` is the host of a rank.
SlowRanks find_slow_ranks(std::span<const std::vector<double>> seconds, std::span<const std::string> hosts,
                          double threshold, std::uint64_t seed);

/// Returns the critical score. The largest score of `members` healthy members exceeds the critical score in 3 % of
/// runs. The critical score comes from a simulation in which the slowness of healthy members has a normal distribution;
/// the distribution's width does not matter. Scores exist only for four or more members, so at most one healthy member
/// in a hundred is accused (3 % / 4).
double critical_score(std::size_t members, std::uint64_t seed);

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
/// because their weights stay wrong. With fewer than kMajority members no member is named.
BitVote vote(std::span<const std::vector<std::uint64_t>> checksums);

}  // namespace hvd::bench
