// N ranks as threads of one process. Each pretended node has its own segment; nodes communicate through inboxes.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"
#include "engine/comm/faults.h"
#include "engine/comm/transport.h"

namespace hvd::comm {

/// Messages and notices that were sent to one rank and not yet received.
struct Inbox {
  Mutex mutex;
  CondVar arrived;
  std::vector<std::deque<std::vector<std::byte>>> messages HVD_GUARDED_BY(mutex);  ///< [sender]
  std::deque<Notice> notices HVD_GUARDED_BY(mutex);
};

/// The inboxes of a world, one per rank, indexed by rank. All transports of the world share them.
using Inboxes = std::vector<std::unique_ptr<Inbox>>;
std::shared_ptr<Inboxes> make_inboxes(int size);

/// Messages between ranks that are threads of one process.
class ThreadTransport final : public Transport {
 public:
  /// Borrows `faults`.
  ThreadTransport(std::shared_ptr<Inboxes> inboxes, int rank, Faults& faults)
      : inboxes_(std::move(inboxes)), rank_(rank), faults_(faults), posted_(inboxes_->size()) {}
  Ticket send(int to, std::span<const std::byte> bytes) override;
  Ticket receive(int from, std::span<std::byte> bytes) override;
  bool test(Ticket ticket) override;
  void wait(Ticket ticket, const Wait& wait) override;
  void notify(int to, const Notice& notice) noexcept override;
  std::optional<Notice> poll_notice() noexcept override;
  bool library_all_reduce(std::byte* /*data*/, std::size_t /*count*/, DataType /*dtype*/, ReduceOp /*op*/,
                          const Wait& /*wait*/) override {
    return false;
  }
  [[nodiscard]] std::string name() const override { return "threads"; }

 private:
  struct Receive {
    Ticket ticket;
    std::span<std::byte> bytes;
  };
  [[nodiscard]] Inbox& inbox(int rank) const { return *(*inboxes_)[static_cast<std::size_t>(rank)]; }
  void await(Ticket ticket, const Wait& wait);
  /// Drops the open receives. After an error the caller may free the memory of these receives, so no late message may
  /// be written there.
  void forget_receives();
  /// Copies the messages that have arrived from rank `from` to the receives posted for rank `from`, in order.
  void deliver(int from, Inbox& mine) HVD_REQUIRES(mine.mutex);

  std::shared_ptr<Inboxes> inboxes_;
  int rank_;
  Faults& faults_;
  Ticket next_ = 1;                          // ticket 0 stands for every send, because sends complete at once
  std::vector<std::deque<Receive>> posted_;  ///< [sender]
  std::map<Ticket, int> open_;               ///< sender of each receive that is not delivered yet
};

/// For tests that inject faults: returns the transport for `rank`. The returned transport owns `inner`.
using WrapTransport = std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport> inner)>;

/// Like make_loopback(), with `wrap` applied to every transport. Errors: those of make_loopback().
std::vector<std::unique_ptr<Communicator>> make_wrapped_loopback(int size, const CommOptions& options,
                                                                 int ranks_per_node, const WrapTransport& wrap);

}  // namespace hvd::comm
