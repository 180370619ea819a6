// Messages over MPI. A wait polls MPI_Test and sleeps between polls, because MPI's own waits spin and the compute needs
// the cores. A mutex serialises the calls, so that any thread may send notices.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/comm/faults.h"
#include "engine/comm/mpi/environment.h"
#include "engine/comm/transport.h"

namespace hvd::comm {

class MpiTransport final : public Transport {
 public:
  /// Borrows `faults`. `data` and `notices` span the world; `notices` carries only notices. `crowded`: ranks of this
  /// node share processors, so that a waiting rank must leave processor time to the other ranks. `eager_bytes`: the
  /// result of eager_bytes().
  MpiTransport(std::shared_ptr<MpiEnvironment> environment, MpiComm data, MpiComm notices, Faults& faults, bool crowded,
               std::size_t eager_bytes);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  Ticket send(int to, std::span<const std::byte> bytes) override;
  Ticket receive(int from, std::span<std::byte> bytes) override;
  bool test(Ticket ticket) override;
  void wait(Ticket ticket, const Wait& wait) override;
  void notify(int to, const Notice& notice) noexcept override;
  std::optional<Notice> poll_notice() noexcept override;
  bool library_all_reduce(std::byte* data, std::size_t count, DataType dtype, ReduceOp op, const Wait& wait) override;
  [[nodiscard]] std::size_t eager_bytes() const noexcept override { return eager_bytes_; }
  [[nodiscard]] std::string name() const override { return "mpi"; }

 private:
  struct PostedRequest {
    int peer = -1;
    std::vector<HvdMpiHandle> requests;  ///< several if the message is too long for MPI's int counts
  };
  struct Outgoing {
    std::vector<std::byte> bytes;
    HvdMpiHandle request = 0;
  };
  Ticket open(PostedRequest operation);
  bool test_locked(PostedRequest& operation) HVD_REQUIRES(mutex_);
  void wait_for(PostedRequest& operation, const Wait& wait);
  void cancel_all() noexcept;

  std::shared_ptr<MpiEnvironment> environment_;
  MpiComm data_;
  MpiComm notices_;
  Faults& faults_;
  const bool crowded_;
  const std::size_t eager_bytes_;
  const HvdMpiTable& mpi_ = mpi();
  Mutex& mutex_;  ///< the environment's mutex, shared by all transports of the process
  Ticket next_ = 1;
  std::map<Ticket, PostedRequest> operations_;  ///< only the owner's thread uses this
  std::unique_ptr<std::list<Outgoing>> outgoing_ HVD_GUARDED_BY(mutex_) = std::make_unique<std::list<Outgoing>>();
};

}  // namespace hvd::comm
