// N ranks as threads of one process.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/exchange_communicator.h"

namespace hvd::comm {
namespace {

struct Meeting {
  Mutex mutex;
  CondVar changed;
  std::vector<Bytes> posted HVD_GUARDED_BY(mutex);
  std::vector<Bytes> result HVD_GUARDED_BY(mutex);
  std::vector<bool> here HVD_GUARDED_BY(mutex);
  std::size_t arrived HVD_GUARDED_BY(mutex) = 0;
  std::uint64_t round HVD_GUARDED_BY(mutex) = 0;
  bool aborted HVD_GUARDED_BY(mutex) = false;
  std::string reason HVD_GUARDED_BY(mutex);
};

class ThreadExchange final : public Exchange {
 public:
  ThreadExchange(std::shared_ptr<Meeting> meeting, std::size_t rank) : meeting_(std::move(meeting)), rank_(rank) {}

  std::vector<Bytes> exchange(std::span<const std::byte> message, Deadline deadline) override {
    Meeting& m = *meeting_;
    const MutexLock lock(m.mutex);
    if (m.aborted) throw Error(Errc::kPeerLost, m.reason);
    m.posted[rank_].assign(message.begin(), message.end());
    m.here[rank_] = true;
    const std::uint64_t round = m.round;
    if (++m.arrived == m.posted.size()) {
      m.result = m.posted;
      m.arrived = 0;
      std::fill(m.here.begin(), m.here.end(), false);
      ++m.round;
      m.changed.notify_all();
      return m.result;
    }
    while (m.round == round) {
      if (m.aborted) throw Error(Errc::kPeerLost, m.reason);
      if (!m.changed.wait_until(m.mutex, deadline.when()) && m.round == round && !m.aborted) {
        const auto missing = std::find(m.here.begin(), m.here.end(), false) - m.here.begin();
        throw Error(Errc::kPeerLost, "rank " + std::to_string(missing) + " did not arrive within the deadline");
      }
    }
    return m.result;
  }

  void abort(std::string_view reason) noexcept override {
    const MutexLock lock(meeting_->mutex);
    if (meeting_->aborted) return;
    meeting_->aborted = true;
    meeting_->reason = reason;
    meeting_->changed.notify_all();
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  std::size_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_loopback(int size, const CommOptions& /*options*/, int ranks_per_node) {
  if (size < 1) throw Error(Errc::kInvalidArgument, "a loopback world needs at least one rank");
  const int per_node = ranks_per_node > 0 ? ranks_per_node : size;
  auto meeting = std::make_shared<Meeting>();
  {
    const MutexLock lock(meeting->mutex);
    meeting->posted.resize(static_cast<std::size_t>(size));
    meeting->here.resize(static_cast<std::size_t>(size));
  }
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    Topology topology;
    topology.rank = rank;
    topology.size = size;
    topology.node = rank / per_node;
    topology.nodes = (size + per_node - 1) / per_node;
    topology.local_rank = rank % per_node;
    topology.local_size = std::min(per_node, size - topology.node * per_node);
    for (int r = 0; r < size; ++r) topology.hosts.push_back("node" + std::to_string(r / per_node));
    ranks.push_back(make_exchange_communicator(
        std::make_unique<ThreadExchange>(meeting, static_cast<std::size_t>(rank)), topology, "loopback", "threads"));
  }
  return ranks;
}

}  // namespace hvd::comm
