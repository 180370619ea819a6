// Finds the ranks or nodes that are slower than the others. scripts/hvdb/slow_ranks.py applies the same rules to stored
// runs; tests/scripts compares the two. Pure: the same times and seed give the same answer.
//
// Every time is compared with the median of the other members (ranks or nodes) in the same step, so that a disturbance
// of all members cancels. A member's slowness is the median of these ratios over the steps.
// Sources: B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers, 1993 (the modified z-score); P. Westfall and
// S. Young, Resampling-Based Multiple Testing, 1993 (the largest score of a healthy run as reference for every score);
// H. David and H. Nagaraja, Order Statistics, 2003, section 7.1 (the interval of a median).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hvd::bench {

/// With fewer members there is no majority, so it is unknown which member is the usual one.
inline constexpr std::size_t kMajority = 4;
/// With fewer steps there is no interval.
inline constexpr int kFewestSteps = 10;

/// Compares one rank or node with the others, as fractions: 0.05 is 5 % slower.
struct Slowness {
  double slower = 0;
  double low = 0, high = 0;     ///< 99 % interval of `slower`
  std::optional<double> score;  ///< modified z-score; none with fewer than kMajority members
  bool slow = false;            ///< the member is accused of being slow
  bool unclear = false;         ///< slower by at least the threshold, but not accused
};

/// `seconds[member][step]`: times above 0 of two or more members, all with equally many steps, at least kFewestSteps.
/// `threshold`: a slow member is slower by at least this fraction. `critical`: critical_score() for this many members.
/// With fewer than kMajority members, the slowest one is accused if its interval lies above the threshold and above the
/// intervals of all others; `critical` is then not used.
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

/// Like compare_times(). Also compares the nodes if some have several ranks: the time of a node is the median over its
/// ranks, step by step. `hosts`: [rank].
SlowRanks find_slow_ranks(std::span<const std::vector<double>> seconds, std::span<const std::string> hosts,
                          double threshold, std::uint64_t seed);

/// Score that the largest of `members` healthy members exceeds in 3 % of runs. It is found by simulation; healthy
/// members differ by a normal distribution of any width. At least four members are scored, so at most one healthy
/// member in a hundred is accused.
double critical_score(std::size_t members, std::uint64_t seed);

}  // namespace hvd::bench
