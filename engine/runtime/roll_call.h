// Finds the rank at fault when a wait for a peer times out. Every rank reports its last activity; the rank that does
// not answer, or is furthest behind, is named. This file handles only the texts; ControlPlane exchanges them. A
// Watchdog reports the progress of work outside of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

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

/// Watches work that the owner of an Engine runs outside of it, such as steps on a GPU. The owner implements a Watchdog
/// and passes it to the Engine's constructor. The Watchdog must outlive the Engine.
///
/// Threads: only the engine's thread calls these methods. In a world of one rank the engine has no thread, and nobody
/// calls them.
class Watchdog {
 public:
  virtual ~Watchdog() = default;
  /// Called before a negotiated batch reads the memory of `gradient`. Work that is enqueued on the data plane after
  /// this call must wait until the gradient is complete.
  virtual void before_gradient(std::size_t gradient) = 0;
  /// Called about every 20 ms while the thread has nothing else to do. An exception fails the engine.
  virtual void look() = 0;
  /// Returns this rank's progress for a roll call; nullopt: use the engine's own status.
  virtual std::optional<RankStatus> status() = 0;
  /// Called after the engine has failed with `why`. Must end the work of the data plane and release threads that wait
  /// for it: an engine with a Watchdog does not call DataPlane::abandon() before its callers hear of the failure.
  virtual void failed(const Error& why) noexcept = 0;
};

}  // namespace hvd
