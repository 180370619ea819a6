// What the engine's thread does for a schedule that runs beside it, on a device: it orders negotiated batches after the
// gradients, and it is the watchdog. Not part of the installed interface.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/base/error.h"
#include "engine/runtime/roll_call.h"

namespace hvd {

/// All are called on the engine's thread. A world of one has none: nothing is called then.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// Work enqueued on the data plane from now on must wait until this gradient is there.
  virtual void before_gradient(std::size_t gradient) = 0;
  /// Every 20 ms or so while the thread has nothing else to do. What it throws fails the engine.
  virtual void look() = 0;
  /// How far this rank is, for a roll call; nothing: as far as the engine says.
  virtual std::optional<RankStatus> status() = 0;
  /// The engine has failed with `why` and says so to whoever asks. Whoever waits on the device is to be released.
  virtual void failed(const Error& why) noexcept = 0;
};

}  // namespace hvd
