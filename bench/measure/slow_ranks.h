// Which ranks or nodes are slower than the others. The same rules as in scripts/hvdb/slow_ranks.py, which judges stored
// runs; tests/scripts compares the two. Pure: same times and seed, same answer.
//
// Every time is compared with the median of the other members in the same step, so that a disturbance of all members
// cancels. The median of these ratios over the steps is how much slower a member is.
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

/// Fewer members have no majority: nobody can tell which of them is usual.
inline constexpr std::size_t kMajority = 4;
/// Fewer steps have no interval.
inline constexpr int kFewestSteps = 10;

/// How one rank or node compares with the others, as fractions: 0.05 is 5 % slower.
struct Slowness {
  double slower = 0;
  double low = 0, high = 0;     ///< 99 % interval of `slower`
  std::optional<double> score;  ///< modified z-score; none with fewer than kMajority members
  bool slow = false;            ///< it is accused
  bool unclear = false;         ///< slower by the threshold or more, and not accused
};

/// `seconds[member][step]`: times above 0 of two members or more, all of the same length, kFewestSteps at least.
/// `threshold`: fraction by which a slow member is slower at least. `critical`: critical_score() of so many members.
/// With fewer than kMajority members the slowest is accused if its interval lies above the threshold and above all
/// others, and `critical` is not read.
std::vector<Slowness> compare_times(std::span<const std::vector<double>> seconds, double threshold, double critical);

struct NodeSlowness {
  std::string host;
  Slowness time;
  std::vector<std::size_t> ranks;  ///< indices into SlowRanks::ranks
};

struct SlowRanks {
  std::vector<Slowness> ranks;      ///< [rank]
  std::vector<NodeSlowness> nodes;  ///< slow nodes; every rank of a slow node is slower by the threshold or more
  std::vector<std::size_t> slow;    ///< slow ranks of other nodes
  std::vector<std::size_t> unclear;
};

/// As compare_times(), and compares the nodes where some have several ranks. A node's time is the median over its
/// ranks, step by step. `hosts`: [rank].
SlowRanks find_slow_ranks(std::span<const std::vector<double>> seconds, std::span<const std::string> hosts,
                          double threshold, std::uint64_t seed);

/// The score that the largest of `members` healthy members exceeds in 3 % of runs. Found by simulation: healthy members
/// differ by a normal distribution of any width. At most one healthy member in a hundred is accused, because four
/// members are the fewest to be scored.
double critical_score(std::size_t members, std::uint64_t seed);

}  // namespace hvd::bench
