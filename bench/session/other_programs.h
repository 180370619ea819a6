// The processor time that other programs take from rank 0's host while a session runs. Rank 0 only.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "bench/session/message.h"
#include "bench/store/run_record.h"
#include "engine/base/deadline.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Processors of one host, in time per time.
struct OtherUse {
  double used = 0;      ///< by other programs
  long processors = 0;  ///< online
  /// More than a tenth of all processors: times are uncertain. `hvdb ranks` has the same limit.
  [[nodiscard]] bool disturbs() const { return used > 0.1 * static_cast<double>(processors); }
  [[nodiscard]] std::string text() const;  ///< "0.92 of 2"
};

class OtherPrograms {
 public:
  /// Begins to count, for the hosts of the engine's ranks.
  explicit OtherPrograms(const Engine& engine);

  /// Returns what others used since the construction; nothing if the kernel does not tell.
  /// `answers`: [rank], to Task::kMeasureMemory.
  [[nodiscard]] std::optional<OtherUse> use(std::span<const Answer> answers) const;

 private:
  const Engine& engine_;
  const Clock::time_point begin_ = Clock::now();
  const double host_seconds_before_;
};

}  // namespace hvd::bench
