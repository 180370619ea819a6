// Point-to-point bytes between ranks: all that the algorithms see of MPI or of threads.
//
// Threads: one thread, except notify() and poll_notice(), which any thread may call.
// Messages of one (sender, receiver) pair arrive in the order in which they were sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/base/types.h"
#include "engine/comm/watch.h"

namespace hvd::comm {

/// Out-of-band word about faults; overtakes nothing and waits for nobody.
struct Notice {
  enum class Kind : std::uint8_t { kAbort, kRollCall, kStatus };
  Kind kind = Kind::kAbort;
  int from = 0;
  std::string text;
};

class Transport {
 public:
  using Ticket = std::uint64_t;

  virtual ~Transport() = default;
  /// Starts; `bytes` must stay as they are until the ticket is waited for.
  virtual Ticket send(int to, std::span<const std::byte> bytes) = 0;
  /// Starts; the message must have exactly bytes.size() bytes.
  /// Errors (also of wait): mismatch if it has more, backend if the library fails.
  virtual Ticket receive(int from, std::span<std::byte> bytes) = 0;
  /// True when the operation is over; the ticket is then spent. Never blocks.
  virtual bool test(Ticket ticket) = 0;
  /// Sleeps until the operation is over. Errors: those of Watch::check and Watch::give_up; the transport is
  /// then unusable except for notices. After any error no receive is open any more, so that its memory may be freed.
  /// The peers are told of a mismatch (Watch::tell_mismatch), because only the receiver finds it.
  virtual void wait(Ticket ticket, const Wait& wait) = 0;

  /// Best effort, never waits.
  virtual void notify(int to, const Notice& notice) noexcept = 0;
  virtual std::optional<Notice> poll_notice() noexcept = 0;

  /// The library's own all-reduce over all ranks, in place. False if it cannot do this type or operation, or
  /// if there is no such library; nothing has been sent then.
  virtual bool library_all_reduce(std::byte* data, std::size_t count, DataType dtype, ReduceOp op,
                                  const Wait& wait) = 0;
  /// "mpi", "threads".
  [[nodiscard]] virtual std::string name() const = 0;
};

}  // namespace hvd::comm
