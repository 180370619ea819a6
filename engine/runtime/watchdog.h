// Watches work that the owner of an Engine runs outside of it, such as steps on a GPU. The owner implements a Watchdog
// and passes it to the Engine's constructor. The Watchdog must outlive the Engine.
//
// Threads: only the engine's thread calls these methods. In a world of one rank the engine has no thread, and nobody
// calls them.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/base/error.h"
#include "engine/runtime/roll_call.h"

namespace hvd {

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
