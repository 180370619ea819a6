// Point-to-point messages of bytes between ranks. The algorithms use MPI or threads only through this interface.
//
// Threads: one thread uses a Transport, except that any thread may call notify() and poll_notice().
// Messages of one (sender, receiver) pair arrive in the order in which they were sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/base/types.h"
#include "engine/comm/flight_record.h"

namespace hvd::comm {

/// An out-of-band message about faults. Sending it never waits; notices of one sender arrive in order.
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
  /// Starts a send. `bytes` must stay unchanged until test() or wait() has reported the end of the send.
  virtual Ticket send(int to, std::span<const std::byte> bytes) = 0;
  /// Starts a receive. The message must have exactly bytes.size() bytes.
  /// Errors of receive() and wait(): mismatch if the message is longer, backend if the library fails.
  virtual Ticket receive(int from, std::span<std::byte> bytes) = 0;
  /// Returns true if the operation is finished; after that, the ticket must not be used again. Never blocks.
  virtual bool test(Ticket ticket) = 0;
  /// Sleeps until the operation is finished. Errors: those of Faults::check and Faults::give_up; after an error the
  /// transport can only be used for notices. No receive stays open after an error, so that the memory of a receive may
  /// be freed. wait() reports a mismatch to the peers, which cannot detect the mismatch (Faults::abort_for_mismatch).
  virtual void wait(Ticket ticket, const Wait& wait) = 0;

  /// Sends `notice` to rank `to`, and never waits. The notice may be lost.
  virtual void notify(int to, const Notice& notice) noexcept = 0;
  virtual std::optional<Notice> poll_notice() noexcept = 0;

  /// Runs the library's own all-reduce over all ranks, in place. Returns false if there is no library, or if it does
  /// not support this type or operation; in that case nothing has been sent.
  virtual bool library_all_reduce(std::byte* data, std::size_t count, DataType dtype, ReduceOp op,
                                  const Wait& wait) = 0;
  /// Returns the longest message that is sent at once; longer ones first ask the receiver (rendezvous). The question
  /// and its answer wait behind other messages of the same connection, so a stream of long messages leaves the link
  /// idle. 0: not known, or a rendezvous costs nothing. The same on all ranks.
  [[nodiscard]] virtual std::size_t eager_bytes() const noexcept { return 0; }
  /// "mpi", "threads".
  [[nodiscard]] virtual std::string name() const = 0;
};

}  // namespace hvd::comm
