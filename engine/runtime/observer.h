// Callbacks by which the engine's thread serves a schedule on a device: it orders negotiated batches after the
// gradients, and it is the watchdog. Not part of the installed interface.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/base/error.h"
#include "engine/runtime/roll_call.h"

namespace hvd {

/// The engine's thread calls all methods. In a world of one rank there is no such thread, and nothing is called.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// Makes work that is enqueued on the data plane from now on wait until this gradient is complete.
  virtual void before_gradient(std::size_t gradient) = 0;
  /// Called about every 20 ms while the thread has nothing else to do. An exception fails the engine.
  virtual void look() = 0;
  /// Returns this rank's progress for a roll call; nullopt: use the engine's own status.
  virtual std::optional<RankStatus> status() = 0;
  /// Called after the engine has failed with `why`. Must release threads that wait for the device.
  virtual void failed(const Error& why) noexcept = 0;
};

}  // namespace hvd
