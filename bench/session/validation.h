// The result of `hvd_bench validate`: plain data that the session fills. The closing text and the JSON output read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/rank_comparison.h"

namespace hvd::bench {

/// One rank, node or group that differs from the others.
struct ValidationFinding {
  enum class Kind : std::uint8_t {
    kDiffers,   ///< a rank computes other bits than the majority of its group
    kDisagree,  ///< ranks of a group compute different bits, and no value has a majority
    kSlow,      ///< a rank or node is slow
    kUnclear,   ///< a rank may be slow, or cannot be compared
  };
  Kind kind = Kind::kDiffers;
  std::vector<int> ranks;
  std::string text;  ///< one line
};
/// Returns "differs", "disagree", "slow" or "unclear".
std::string_view name(ValidationFinding::Kind kind) noexcept;

struct ValidatedRank {
  std::string host;
  std::string gpu;               ///< identifies the GPU; empty on a CPU
  std::size_t group = 0;         ///< index into Validation::groups
  double seconds = 0;            ///< Slowness::seconds of forward and backward together; alone in its group: the median
  std::optional<Slowness> time;  ///< compared with the other ranks of its group; none if the group has one rank
  std::string gradients, weights;  ///< checksums of the last step, 16 hex digits
};

struct Validation {
  std::int64_t steps = 0;        ///< steps with checksums, including the warm-up
  std::int64_t timed_steps = 0;  ///< number of timed steps, which are the last of `steps`
  double threshold = 0;  ///< a rank or node is slow if it takes longer than the others by at least this fraction
  int turns = 1;         ///< the ranks of a host took each step in this many turns, one turn after another
  std::vector<std::string> groups;  ///< [group], a description of the group of equal ranks
  std::vector<ValidatedRank> ranks;
  std::vector<ValidationFinding> findings;
  std::vector<std::string> notes;

  /// Returns 0 if there are no findings, 3 if all findings are unclear, else 1.
  [[nodiscard]] int exit_code() const;
};

}  // namespace hvd::bench
