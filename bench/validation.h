// What `hvd_bench validate` found: plain data that the session fills and the closing text and the JSON output read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/slow_ranks.h"

namespace hvd::bench {

/// One rank, node or group that is not as the others are.
struct ValidationFinding {
  enum class Kind : std::uint8_t {
    kDiffers,   ///< a rank computes other bits than the majority of its group
    kDisagree,  ///< ranks of a group compute different bits, and there is no majority
    kSlow,      ///< a rank or node is slow
    kUnclear,   ///< a rank may be slow, or cannot be compared
  };
  Kind kind = Kind::kDiffers;
  std::vector<int> ranks;
  std::string text;  ///< one line
};
/// "differs", "disagree", "slow", "unclear".
std::string_view name(ValidationFinding::Kind kind) noexcept;

struct ValidatedRank {
  std::string host;
  std::string gpu;                 ///< identifies it; empty on a CPU
  std::size_t group = 0;           ///< index into Validation::groups
  double seconds = 0;              ///< median of forward and backward
  std::optional<Slowness> time;    ///< compared with the others of its group; none if there are no others
  std::string gradients, weights;  ///< checksums of the last step, 16 hex digits
};

struct Validation {
  std::int64_t steps = 0;           ///< with checksums, those of the warm-up included
  std::int64_t timed_steps = 0;     ///< the last of them
  double threshold = 0;             ///< a slow rank or node is slower by this fraction at least
  int turns = 1;                    ///< ranks of a host took so many turns in each step
  std::vector<std::string> groups;  ///< of equal ranks: what they are
  std::vector<ValidatedRank> ranks;
  std::vector<ValidationFinding> findings;
  std::vector<std::string> notes;

  /// Returns 0 without findings, 3 if all findings are unclear, else 1.
  [[nodiscard]] int exit_code() const;
};

}  // namespace hvd::bench
